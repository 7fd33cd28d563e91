#include "framework/training/checkpoint_writer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "framework/error.h"
#include "framework/log.h"
#include "framework/storage/hash.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

// What a rank other than the main one says of its files, until they are in the manifest.
std::string part_name(int rank) { return concat("rank_", rank, ".part"); }

// Other machines may see a new file of a shared directory later.
std::string read_when_there(const std::string& path) {
    using Clock = std::chrono::steady_clock;
    constexpr auto kMostWait = std::chrono::seconds(60);
    const auto start = Clock::now();
    while (!fs::exists(path) && Clock::now() - start < kMostWait) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return read_file(path);
}

}  // namespace

CheckpointWriter::CheckpointWriter(TrainableModel& model, CheckpointStore store, bool asynchronous)
    : model_(model), store_(std::move(store)), asynchronous_(asynchronous) {}

CheckpointWriter::~CheckpointWriter() {
    if (!thread_.joinable()) return;
    is_awaited_ = true;
    hurry();
    thread_.join();
}

void CheckpointWriter::start(std::int64_t step, const std::string& run_state) {
    if (pending()) {
        if (model_.is_main_rank()) {
            log_info(concat("step ", step, " waits for the checkpoint of step ", step_,
                            ", which is still being written"));
        }
        finish();
    }
    step_ = step;
    failure_.clear();
    error_.clear();
    if (model_.is_main_rank()) {
        try {
            store_.begin(step);
        } catch (const Error& error) {
            error_ = error.what();
        }
    }
    status_ = error_.empty() ? kDone : kFailed;
    if (status_of_all() == kFailed) return fail();
    state_ = model_.state();
    if (asynchronous_) copy(state_);
    run_state_ = run_state;
    phase_ = Phase::kWriting;
    run(&CheckpointWriter::write);
    if (!asynchronous_) finish();
}

void CheckpointWriter::copy(ModelState& state) {
    struct Block {
        std::byte* to;
        const std::byte* from;
        std::size_t bytes;
    };
    constexpr std::size_t kBlock = 1 << 20;
    std::vector<Block> blocks;
    std::size_t next = 0;
    for (StateShard& shard : state.shards) {
        for (TensorPiece& piece : shard.pieces) {
            if (next == copies_.size()) copies_.emplace_back();
            Tensor& to = copies_[next++];
            const Tensor& from = piece.data;
            if (!to.defined() || to.shape() != from.shape() || to.dtype() != from.dtype()) {
                to = Tensor::uninitialized(from.shape(), from.dtype());
            }
            if (from.device() == Device::kCpu && from.is_contiguous()) {
                for (std::size_t at = 0; at < from.bytes(); at += kBlock) {
                    blocks.push_back(
                        {to.raw() + at, from.raw() + at, std::min(kBlock, from.bytes() - at)});
                }
            } else {
                to.copy_from(from);
            }
            piece.data = to;
        }
    }
    // All cores: the steps wait for this.
#pragma omp parallel for schedule(static)
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        std::memcpy(blocks[i].to, blocks[i].from, blocks[i].bytes);
    }
}

void CheckpointWriter::run(void (CheckpointWriter::*job)()) {
    status_ = kRunning;
    const auto guarded = [this, job] {
        try {
            (this->*job)();
            status_ = kDone;
        } catch (const std::exception& error) {
            error_ = error.what();
            status_ = kFailed;
        }
    };
    if (!asynchronous_) return guarded();
    // Signals are the training's affair: a new thread inherits what is blocked.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_id_ = 0;
    is_awaited_ = false;
    thread_ = std::thread([this, guarded] {
        // Only of this thread, on Linux: it takes the time that the training leaves.
        constexpr int kLowest = 19;
        ::setpriority(PRIO_PROCESS, 0, kLowest);
        thread_id_ = static_cast<int>(::gettid());
        if (is_awaited_) hurry();
        guarded();
    });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Back to the process's own priority, where the system allows it.
void CheckpointWriter::hurry() {
    const int thread = thread_id_;
    if (thread != 0) ::setpriority(PRIO_PROCESS, thread, ::getpriority(PRIO_PROCESS, ::getpid()));
}

void CheckpointWriter::write() {
    const std::string directory = store_.unfinished_path(step_);
    written_.clear();
    for (const StateShard& shard : state_.shards) written_.push_back(write_shard(directory, shard));
    if (model_.is_main_rank()) {
        write_file(directory + "/trainer.json", run_state_);
        written_.push_back({"trainer.json", run_state_.size(), hash_of(run_state_)});
    } else if (!written_.empty()) {
        write_file_atomically(directory + "/" + part_name(model_.rank()), to_text(written_));
    }
}

void CheckpointWriter::commit() {
    const std::string directory = store_.unfinished_path(step_);
    for (int rank = 1; rank < state_.writers; ++rank) {
        const std::string part = directory + "/" + part_name(rank);
        const auto files = parse_manifest_files(read_when_there(part), part);
        written_.insert(written_.end(), files.begin(), files.end());
        fs::remove(part);
    }
    store_.commit(step_, state_.layout, written_);
}

int CheckpointWriter::status_of_all() { return static_cast<int>(model_.max_over_ranks(status_)); }

void CheckpointWriter::fail() {
    if (!error_.empty()) {
        log_warning(concat("the checkpoint of step ", step_,
                           " could not be written, those before it are as they were: ", error_));
    }
    failure_ = error_.empty() ? "another rank could not write its part" : error_;
    if (model_.is_main_rank()) store_.discard(step_);
    state_ = {};
    phase_ = Phase::kIdle;
}

void CheckpointWriter::poll() {
    if (!pending()) return;
    const int status = status_of_all();
    if (status == kRunning) return;
    if (thread_.joinable()) thread_.join();
    if (status == kFailed) return fail();
    if (phase_ == Phase::kWriting) {
        phase_ = Phase::kCommitting;
        if (model_.is_main_rank()) run(&CheckpointWriter::commit);
        return;
    }
    committed_ = store_.path(step_);
    state_ = {};
    phase_ = Phase::kIdle;
}

bool CheckpointWriter::finish() {
    // In short operations: a rank whose files take longer than parallel.timeout_seconds is not lost.
    while (pending()) {
        is_awaited_ = true;
        if (thread_.joinable()) hurry();
        if (status_ == kRunning) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        poll();
    }
    return failure_.empty();
}

}  // namespace evenkeel
