// NCCL on MPI's messages between two ranks: what its files share. One process is one rank; all of it runs
// on the thread that calls MPI. Messages are MPI_COMM_WORLD's, which the project's own code duplicates and
// does not use. Functions named PMPI_ are MPI's own, whatever else is linked.
#pragma once

#include <mpi.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu_emulator/queue.h"

namespace gpu_emulator::nccl {

using Bytes = std::vector<std::byte>;

// A message on its way. Its memory lives until it has ended.
class Message {
  public:
    static std::shared_ptr<Message> send(int world_rank, int tag, Bytes bytes);
    static std::shared_ptr<Message> receive(int world_rank, int tag, std::size_t bytes);
    bool done();
    const Bytes& bytes() const { return bytes_; }
    // For a message that may never end.
    static void abandon(std::shared_ptr<Message> message);

  private:
    Bytes bytes_;
    MPI_Request request_ = MPI_REQUEST_NULL;
};
using MessagePtr = std::shared_ptr<Message>;

template <typename T>
Bytes to_bytes(const T& value) {
    const auto* data = reinterpret_cast<const std::byte*>(&value);
    return Bytes(data, data + sizeof value);
}

// This rank's part of a communicator.
struct Member {
    int rank = 0, size = 1;
    int tag = 0;             // of its messages; the next one is for its making
    std::vector<int> world;  // the members' ranks in MPI_COMM_WORLD
    ncclResult_t result = ncclInProgress;
    bool has_failed() const { return result != ncclSuccess && result != ncclInProgress; }
    std::string error;  // of the last failure
    bool aborted = false;
    std::int64_t collectives = 0;              // begun
    std::vector<std::int64_t> sent, received;  // begun, by peer
    int unfinished = 0;
    std::function<bool()> making;      // until the members have met: true when done
    std::function<void()> to_enqueue;  // a call that was accepted, and not done yet
};

// Marks a communicator as failed and tells the other members.
void fail(Member& member, ncclResult_t result, const std::string& text);

enum class Function : std::int32_t {
    kAllReduce,
    kReduceScatter,
    kAllGather,
    kBroadcast,
    kSend,
    kReceive
};

struct Call {
    Function function;
    ncclDataType_t type;
    ncclRedOp_t op = ncclSum;
    int peer = 0;                         // root, source or destination
    std::uint64_t input = 0, output = 0;  // addresses on the device
    std::size_t count = 0;                // elements of the smaller of input and output
};

// One run of a call, for a stream.
Advance begin(const std::shared_ptr<Member>& member, const Call& call);

std::size_t size_of(ncclDataType_t type);
// out[i] = sources[0][i] op sources[1][i] op ..; floats in fp32 (fp64 in fp64), rounded once: NCCL itself
// rounds after each rank. An average multiplies by 1/ranks before it adds, as NCCL does.
void reduce(ncclDataType_t type,
            ncclRedOp_t op,
            const std::vector<const std::byte*>& sources,
            std::byte* out,
            std::size_t count);

}  // namespace gpu_emulator::nccl
