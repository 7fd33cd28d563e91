// The part of NCCL that the project calls. Communicators are made without blocking, and calls may be
// accepted before they are done, as the project asks of NCCL.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/nccl.h"
#include "tests/gpu_emulator/streams.h"

struct ncclComm {
    std::shared_ptr<gpu_emulator::nccl::Member> member;
};

namespace gpu_emulator::nccl {
namespace {

// What a ncclUniqueId holds: the process that made it, and how many it had made.
struct Id {
    std::int32_t maker, number;
};

std::string last_error;  // of calls without a communicator

bool has_mpi() {
    int initialized = 0;
    PMPI_Initialized(&initialized);
    return initialized != 0;
}

int my_world_rank() {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
}

ncclResult_t refuse(const std::string& text, ncclResult_t result = ncclInvalidUsage) {
    last_error = text;
    report("NCCL: " + text);
    return result;
}

// A member introduces itself to the maker of the id, who introduces all to each.
struct Hello {
    std::int32_t rank = 0, size = 0, world = 0;
    std::array<char, 64> host{};
    std::array<char, 16> gpu{};
};

Hello introduce(const Member& member) {
    Hello hello;
    hello.rank = member.rank;
    hello.size = member.size;
    hello.world = my_world_rank();
    gethostname(hello.host.data(), hello.host.size() - 1);
    int device = 0;
    cudaDeviceProp properties{};
    cudaGetDevice(&device);
    cudaGetDeviceProperties(&properties, device);
    std::memcpy(hello.gpu.data(), properties.uuid.bytes, hello.gpu.size());
    return hello;
}

// What the maker answers: first a result, then the members' ranks in MPI_COMM_WORLD.
std::vector<std::int32_t> judge(const std::vector<Hello>& hellos) {
    std::vector<std::int32_t> answer{ncclSuccess};
    const char* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const bool may_share = shared != nullptr && std::strcmp(shared, "1") == 0;
    for (std::size_t r = 0; r < hellos.size(); ++r) {
        answer.push_back(hellos[r].world);
        for (std::size_t other = 0; other < r; ++other) {
            const bool same =
                hellos[r].host == hellos[other].host && hellos[r].gpu == hellos[other].gpu;
            if (same && !may_share) answer[0] = ncclInvalidUsage;
        }
        if (hellos[r].size != static_cast<int>(hellos.size())) answer[0] = ncclInvalidArgument;
    }
    return answer;
}

// Brings the members of a communicator together, piece by piece.
class Meeting {
  public:
    Meeting(Member& member, const Id& id) : member_(member), id_(id), tag_(member.tag + 1) {
        const Hello mine = introduce(member_);
        if (is_maker()) {
            hellos_.resize(static_cast<std::size_t>(member_.size));
            take(mine);
            expect_hello();
        } else {
            sent_.push_back(Message::send(id_.maker, tag_, to_bytes(mine)));
            answer_ = Message::receive(
                id_.maker, tag_, sizeof(std::int32_t) * static_cast<std::size_t>(member_.size + 1));
        }
    }

    bool advance() {
        if (is_maker()) {
            while (seen_ < member_.size) {
                if (!incoming_->done()) return false;
                Hello hello;
                std::memcpy(&hello, incoming_->bytes().data(), sizeof hello);
                take(hello);
                expect_hello();
            }
            if (member_.world.empty()) answer_all();
        } else if (member_.world.empty()) {
            if (!answer_->done()) return false;
            std::vector<std::int32_t> words(static_cast<std::size_t>(member_.size + 1));
            std::memcpy(words.data(), answer_->bytes().data(), answer_->bytes().size());
            accept(words);
        }
        for (const MessagePtr& message : sent_) {
            if (!message->done()) return false;
        }
        return true;
    }

  private:
    bool is_maker() const { return id_.maker == my_world_rank(); }

    void take(const Hello& hello) {
        hellos_.at(static_cast<std::size_t>(hello.rank)) = hello;
        ++seen_;
    }
    void expect_hello() {
        if (seen_ < member_.size) {
            incoming_ = Message::receive(MPI_ANY_SOURCE, tag_, sizeof(Hello));
        }
    }
    void answer_all() {
        const std::vector<std::int32_t> words = judge(hellos_);
        Bytes bytes(words.size() * sizeof(std::int32_t));
        std::memcpy(bytes.data(), words.data(), bytes.size());
        for (const Hello& hello : hellos_) {
            if (hello.world != my_world_rank()) {
                sent_.push_back(Message::send(hello.world, tag_, bytes));
            }
        }
        accept(words);
    }
    void accept(const std::vector<std::int32_t>& words) {
        member_.world.assign(words.begin() + 1, words.end());
        verdict_ = static_cast<ncclResult_t>(words[0]);
    }

  public:
    ncclResult_t verdict() const { return verdict_; }

  private:
    Member& member_;
    Id id_;
    int tag_;
    std::vector<Hello> hellos_;
    int seen_ = 0;
    MessagePtr incoming_, answer_;
    std::vector<MessagePtr> sent_;
    ncclResult_t verdict_ = ncclSuccess;
};

// What goes on by itself with NCCL goes on when somebody asks here.
void advance(Member& member) {
    if (member.making && member.making()) member.making = nullptr;
    if (member.to_enqueue) std::exchange(member.to_enqueue, nullptr)();
}

// Every second call is accepted only, and done when the caller has asked how it went.
ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, const char* what, const Call& call) {
    static bool at_once = false;
    if (comm == nullptr) return refuse(std::string(what) + ": no communicator");
    const std::shared_ptr<Member> member = comm->member;
    if (member->result == ncclInProgress) {
        return refuse(std::string(what) + ": the call before is still in progress");
    }
    if (member->result != ncclSuccess) return member->result;
    const auto enqueue_it = [=] {
        const cudaError_t error =
            enqueue(stream, std::string("NCCL ") + what, [=] { return begin(member, call); });
        if (member->has_failed()) return;
        member->result = error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
        if (error != cudaSuccess) member->error = cudaGetErrorString(error);
    };
    at_once = !at_once;
    if (at_once) {
        enqueue_it();
        return member->result;
    }
    member->result = ncclInProgress;
    member->to_enqueue = enqueue_it;
    return ncclInProgress;
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace
}  // namespace gpu_emulator::nccl

using namespace gpu_emulator::nccl;
using gpu_emulator::ApiLock;

extern "C" {

// A rank that waits for messages of the project's own lets its GPU go on meanwhile. MPI provides for such
// functions in front of its own; this one is in front since a program that uses NCCL links this file.
int MPI_Testall(int count, MPI_Request* requests, int* done, MPI_Status* statuses) {
    const int result = PMPI_Testall(count, requests, done, statuses);
    if (result == MPI_SUCCESS && *done == 0) {
        const ApiLock lock;
        gpu_emulator::run_one();
    }
    return result;
}

// EVENKEEL_EMULATED_NCCL_VERSION: another one than the header's.
ncclResult_t ncclGetVersion(int* version) {
    const char* const text = std::getenv("EVENKEEL_EMULATED_NCCL_VERSION");
    *version = text == nullptr ? NCCL_VERSION_CODE : std::atoi(text);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    static int made = 0;
    if (!has_mpi()) return refuse("ncclGetUniqueId: MPI is not initialised");
    const Id content{my_world_rank(), made++};
    *id = {};
    std::memcpy(id, &content, sizeof content);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(
    ncclComm_t* comm, int size, ncclUniqueId unique, int rank, ncclConfig_t* config) {
    constexpr int kTagsPerMaker = 4096;
    if (config == nullptr || config->blocking != 0) {
        return refuse("ncclCommInitRankConfig: only blocking = 0 is emulated");
    }
    Id id{};
    std::memcpy(&id, &unique, sizeof id);
    if (rank < 0 || rank >= size || id.number >= kTagsPerMaker / 2) {
        return refuse("ncclCommInitRankConfig: a rank or number is out of range",
                      ncclInvalidArgument);
    }
    const ApiLock lock;
    auto member = std::make_shared<Member>();
    member->rank = rank;
    member->size = size;
    member->tag = id.maker * kTagsPerMaker + 2 * id.number;
    member->sent.resize(static_cast<std::size_t>(size));
    member->received.resize(static_cast<std::size_t>(size));
    Member& made = *member;
    const auto meeting = std::make_shared<Meeting>(made, id);
    made.making = [meeting, &made] {
        if (!meeting->advance()) return false;
        made.result = meeting->verdict();
        if (made.result == ncclInvalidUsage) made.error = "two ranks use the same GPU";
        if (made.result == ncclInvalidArgument) made.error = "ranks disagree about their number";
        return true;
    };
    *comm = new ncclComm{std::move(member)};
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
    if (comm == nullptr) return refuse("ncclCommGetAsyncError: no communicator");
    const ApiLock lock;
    *result = comm->member->result;
    advance(*comm->member);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (comm == nullptr) return refuse("ncclCommFinalize: no communicator");
    const ApiLock lock;
    Member& member = *comm->member;
    if (member.result != ncclSuccess) return member.result;
    member.result = ncclInProgress;
    member.making = [&member] {
        gpu_emulator::run_one();
        if (member.has_failed()) return true;
        if (member.unfinished > 0) return false;
        member.result = ncclSuccess;
        return true;
    };
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm == nullptr) return refuse("ncclCommDestroy: no communicator");
    const ApiLock lock;
    if (comm->member->unfinished > 0 || comm->member->result == ncclInProgress) {
        refuse("ncclCommDestroy: the communicator is in use");
    }
    comm->member->aborted = true;
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm == nullptr) return refuse("ncclCommAbort: no communicator");
    const ApiLock lock;
    comm->member->aborted = true;
    // What is on its way to or from it may never end, nor be freed.
    static auto* const aborted = new std::vector<std::shared_ptr<Member>>;
    aborted->push_back(comm->member);
    delete comm;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error";
        case ncclSystemError:
            return "unhandled system error";
        case ncclInvalidArgument:
            return "invalid argument";
        case ncclInvalidUsage:
            return "invalid usage";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
        default:
            return "internal error";
    }
}

const char* ncclGetLastError(ncclComm_t comm) {
    return comm == nullptr ? last_error.c_str() : comm->member->error.c_str();
}

ncclResult_t ncclAllReduce(const void* input,
                           void* output,
                           size_t count,
                           ncclDataType_t type,
                           ncclRedOp_t op,
                           ncclComm_t comm,
                           cudaStream_t stream) {
    return submit(comm, stream, "all-reduce",
                  {Function::kAllReduce, type, op, 0, address(input), address(output), count});
}

ncclResult_t ncclReduceScatter(const void* input,
                               void* output,
                               size_t count,
                               ncclDataType_t type,
                               ncclRedOp_t op,
                               ncclComm_t comm,
                               cudaStream_t stream) {
    return submit(comm, stream, "reduce-scatter",
                  {Function::kReduceScatter, type, op, 0, address(input), address(output), count});
}

ncclResult_t ncclAllGather(const void* input,
                           void* output,
                           size_t count,
                           ncclDataType_t type,
                           ncclComm_t comm,
                           cudaStream_t stream) {
    return submit(comm, stream, "all-gather",
                  {Function::kAllGather, type, ncclSum, 0, address(input), address(output), count});
}

ncclResult_t ncclBroadcast(const void* input,
                           void* output,
                           size_t count,
                           ncclDataType_t type,
                           int root,
                           ncclComm_t comm,
                           cudaStream_t stream) {
    return submit(
        comm, stream, "broadcast",
        {Function::kBroadcast, type, ncclSum, root, address(input), address(output), count});
}

ncclResult_t ncclSend(const void* input,
                      size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
    return submit(comm, stream, "send",
                  {Function::kSend, type, ncclSum, peer, address(input), 0, count});
}

ncclResult_t ncclRecv(void* output,
                      size_t count,
                      ncclDataType_t type,
                      int peer,
                      ncclComm_t comm,
                      cudaStream_t stream) {
    return submit(comm, stream, "receive",
                  {Function::kReceive, type, ncclSum, peer, 0, address(output), count});
}

}  // extern "C"
