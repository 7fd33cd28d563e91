// Writes checkpoints of a run beside its training: the state is copied, a thread of each rank writes what that rank
// owns, and when all have, the main rank's thread commits. Nothing but the copy keeps the steps waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "framework/storage/checkpoint.h"
#include "framework/training/trainable_model.h"

namespace evenkeel {

// All ranks call the same functions in the same order. The threads talk to no other rank: ranks agree in poll() and
// finish(). What cannot be written (no room, no permission, a directory that is gone) is a warning that names the
// path, on the rank that met it; what was written of that checkpoint is removed, and the training goes on.
class CheckpointWriter {
  public:
    // The model must outlive it. asynchronous false: start() returns when the checkpoint is there, without a copy.
    CheckpointWriter(TrainableModel& model, CheckpointStore store, bool asynchronous);
    // Waits for this rank's thread, and leaves what it has written uncommitted.
    ~CheckpointWriter();
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    const CheckpointStore& store() const { return store_; }

    // Begins the checkpoint of a step: the model's state as it is now, and `run_state` as its trainer.json. Waits for
    // the one before, should that still be pending. Collective.
    void start(std::int64_t step, const std::string& run_state);
    // Between steps: goes on where all ranks are ready to. One small sum over ranks while a checkpoint is pending,
    // else nothing. Collective.
    void poll();
    // Waits until nothing is pending. Returns whether the checkpoint that was started last is there (true where none
    // was); failure() says why not. Collective.
    bool finish();

    bool pending() const { return phase_ != Phase::kIdle; }
    bool writes() const { return status_ == kRunning; }  // this rank's thread
    std::int64_t step() const { return step_; }          // of the one that was started last
    // Of the checkpoint that was committed last, "" before the first.
    const std::string& committed() const { return committed_; }
    const std::string& failure() const { return failure_; }

  private:
    enum class Phase { kIdle, kWriting, kCommitting };
    // The largest of the ranks' decides.
    static constexpr int kDone = 0, kFailed = 1, kRunning = 2;

    void copy(ModelState& state);
    void run(void (CheckpointWriter::*job)());
    void write();
    void commit();
    void fail();
    void hurry();
    int status_of_all();  // collective

    TrainableModel& model_;
    const CheckpointStore store_;
    const bool asynchronous_;
    Phase phase_ = Phase::kIdle;
    std::int64_t step_ = 0;
    std::string run_state_, committed_, failure_;

    // The thread's while it runs.
    ModelState state_;
    std::vector<ManifestFile> written_;
    std::string error_;
    std::vector<Tensor> copies_;  // memory of the copies, kept for the next

    std::thread thread_;
    std::atomic<int> status_{kDone};
    std::atomic<int> thread_id_{0};        // as the system counts; 0 before it has begun
    std::atomic<bool> is_awaited_{false};  // the training waits for it
};

}  // namespace evenkeel
