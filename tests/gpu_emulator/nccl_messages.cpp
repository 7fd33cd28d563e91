// Messages, and the arithmetic of reductions.
#include <cstring>
#include <utility>

#include "tests/gpu_emulator/floats.h"
#include "tests/gpu_emulator/nccl.h"

namespace gpu_emulator::nccl {
namespace {

template <typename T, typename Read, typename Write>
void reduce_as(ncclRedOp_t op, std::size_t sources, std::size_t count, Read read, Write write) {
    const T factor = op == ncclAvg ? T{1} / static_cast<T>(sources) : T{1};
    for (std::size_t i = 0; i < count; ++i) {
        T value = read(0, i) * factor;
        for (std::size_t s = 1; s < sources; ++s) {
            const T next = read(s, i) * factor;
            value = op == ncclMax ? (next > value ? next : value) : value + next;
        }
        write(i, value);
    }
}

template <typename T>
void reduce_plain(ncclRedOp_t op,
                  const std::vector<const std::byte*>& sources,
                  std::byte* out,
                  std::size_t count) {
    reduce_as<T>(
        op, sources.size(), count,
        [&](std::size_t s, std::size_t i) {
            T value;
            std::memcpy(&value, sources[s] + i * sizeof value, sizeof value);
            return value;
        },
        [&](std::size_t i, T value) { std::memcpy(out + i * sizeof value, &value, sizeof value); });
}

}  // namespace

MessagePtr Message::send(int world_rank, int tag, Bytes bytes) {
    auto message = std::make_shared<Message>();
    message->bytes_ = std::move(bytes);
    PMPI_Isend(message->bytes_.data(), static_cast<int>(message->bytes_.size()), MPI_BYTE,
               world_rank, tag, MPI_COMM_WORLD, &message->request_);
    return message;
}

MessagePtr Message::receive(int world_rank, int tag, std::size_t bytes) {
    auto message = std::make_shared<Message>();
    message->bytes_.resize(bytes);
    PMPI_Irecv(message->bytes_.data(), static_cast<int>(bytes), MPI_BYTE, world_rank, tag,
               MPI_COMM_WORLD, &message->request_);
    return message;
}

bool Message::done() {
    if (request_ == MPI_REQUEST_NULL) return true;
    int done = 0;
    PMPI_Test(&request_, &done, MPI_STATUS_IGNORE);
    return done != 0;
}

void Message::abandon(MessagePtr message) {
    // Never destroyed: MPI may still use their memory.
    static auto* const abandoned = new std::vector<MessagePtr>;
    if (message != nullptr) abandoned->push_back(std::move(message));
}

std::size_t size_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
        case ncclUint8:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64:
            return 8;
        default:
            return 4;
    }
}

void reduce(ncclDataType_t type,
            ncclRedOp_t op,
            const std::vector<const std::byte*>& sources,
            std::byte* out,
            std::size_t count) {
    switch (type) {
        case ncclFloat32:
            return reduce_plain<float>(op, sources, out, count);
        case ncclFloat64:
            return reduce_plain<double>(op, sources, out, count);
        case ncclInt32:
            return reduce_plain<std::int32_t>(op, sources, out, count);
        default:
            break;
    }
    reduce_as<float>(
        op, sources.size(), count,
        [&](std::size_t s, std::size_t i) {
            Bfloat16 value;
            std::memcpy(&value, sources[s] + i * sizeof value, sizeof value);
            return widen(value);
        },
        [&](std::size_t i, float value) {
            const auto rounded = narrow<Bfloat16>(value);
            std::memcpy(out + i * sizeof rounded, &rounded, sizeof rounded);
        });
}

}  // namespace gpu_emulator::nccl
