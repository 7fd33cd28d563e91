// Copies and fills of the emulated runtime: what is checked and read when a call is made, and what
// waits in a stream. Every copy says by its kind which side is the device, and a pointer of the other
// side is reported.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/memory.h"
#include "tests/gpu_emulator/memory_table.h"
#include "tests/gpu_emulator/streams.h"

namespace gpu_emulator {
namespace {

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

const char* name_of(cudaMemcpyKind kind) {
    switch (kind) {
        case cudaMemcpyHostToHost:
            return "host to host";
        case cudaMemcpyHostToDevice:
            return "host to device";
        case cudaMemcpyDeviceToHost:
            return "device to host";
        case cudaMemcpyDeviceToDevice:
            return "device to device";
        case cudaMemcpyDefault:
            return "default";
    }
    return "unknown";
}

// False if the pointers are not of the sides that the kind names.
bool resolve_kind(const char* call, const void* to, const void* from, cudaMemcpyKind& kind) {
    const bool to_device = in_device_window(address_of(to));
    const bool from_device = in_device_window(address_of(from));
    const cudaMemcpyKind actual =
        to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                  : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
    if (kind == cudaMemcpyDefault) kind = actual;
    if (kind == actual) return true;
    std::ostringstream text;
    text << call << ": kind is " << name_of(kind) << ", but " << to << " <- " << from << " is "
         << name_of(actual);
    report(text.str());
    return false;
}

struct Rows {
    std::byte* at;
    std::size_t pitch;
    std::size_t bytes, rows;
    std::byte* row(std::size_t i) const { return at + i * pitch; }
};

// Whether the program may name this memory now, whatever the streams have come to.
bool check_rows(const char* call, const Rows& rows) {
    for (std::size_t i = 0; i < rows.rows; ++i) {
        const std::uint64_t address = address_of(rows.row(i));
        if (is_living_for_host(address, rows.bytes)) continue;
        std::ostringstream text;
        text << "out of bounds: " << call << " of " << rows.bytes << " bytes at "
             << DeviceMemory::instance().describe(address);
        report(text.str());
        return false;
    }
    return true;
}

bool copy_row(std::byte* to, const std::byte* from, std::size_t bytes, cudaMemcpyKind kind) {
    switch (kind) {
        case cudaMemcpyHostToDevice:
            return copy_to_device(address_of(to), from, bytes);
        case cudaMemcpyDeviceToHost:
            return copy_to_host(to, address_of(from), bytes);
        case cudaMemcpyDeviceToDevice:
            return copy_on_device(address_of(to), address_of(from), bytes);
        default:
            std::memcpy(to, from, bytes);
            return true;
    }
}

// Pageable memory is read by the call, as if staged; pinned memory when the stream comes to it.
Work copy_work(const Rows& to,
               const Rows& from,
               cudaMemcpyKind kind,
               const std::shared_ptr<bool>& failed) {
    std::shared_ptr<std::vector<std::byte>> staged;  // held by the closures
    Rows source = from;
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from.at)) {
        staged = std::make_shared<std::vector<std::byte>>(from.bytes * from.rows);
        for (std::size_t i = 0; i < from.rows; ++i) {
            std::memcpy(staged->data() + i * from.bytes, from.row(i), from.bytes);
        }
        source = {staged->data(), from.bytes, from.bytes, from.rows};
    }
    return [to, source, kind, failed, staged] {
        return [to, source, kind, failed, staged] {
            for (std::size_t i = 0; i < to.rows && !*failed; ++i) {
                *failed = !copy_row(to.row(i), source.row(i), to.bytes, kind);
            }
            if (*failed) set_kernel_failed();
            return true;
        };
    };
}

cudaError_t copy_rows(const char* call,
                      const Rows& to,
                      const Rows& from,
                      cudaMemcpyKind kind,
                      cudaStream_t handle,
                      bool synchronous) {
    StreamState* const stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (to.bytes == 0 || to.rows == 0) return cudaSuccess;
    if (to.rows > 1 && (to.pitch < to.bytes || from.pitch < from.bytes)) {
        return cudaErrorInvalidPitchValue;
    }
    if (!resolve_kind(call, to.at, from.at, kind)) return cudaErrorInvalidValue;
    const bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
    const bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
    if (!to_host && !check_rows(call, to)) return cudaErrorInvalidValue;
    if (!from_host && !check_rows(call, from)) return cudaErrorInvalidValue;
    const bool pageable = (to_host && !is_pinned(to.at)) || (from_host && !is_pinned(from.at));
    const bool waits =
        synchronous || (to_host && pageable) || (kind == cudaMemcpyHostToHost && pageable);
    if (stream->capture != nullptr && (waits || pageable)) {
        invalidate(*stream->capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    if (synchronous) {
        const cudaError_t error = check_unsafe_call();
        if (error != cudaSuccess) return error;
    }
    const auto failed = std::make_shared<bool>(false);
    Task task;
    task.what = call;
    task.work = copy_work(to, from, kind, failed);
    OperationPtr operation;
    const cudaError_t error = submit(*stream, std::move(task), &operation);
    if (error != cudaSuccess || !waits) return error;
    count_host_wait(call);
    wait_for(operation);
    if (*failed) return cudaErrorInvalidValue;
    return context_error();
}

cudaError_t set_rows(const char* call, const Rows& to, int byte, cudaStream_t handle) {
    StreamState* const stream = find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (to.bytes == 0 || to.rows == 0) return cudaSuccess;
    if (to.rows > 1 && to.pitch < to.bytes) return cudaErrorInvalidPitchValue;
    if (!check_rows(call, to)) return cudaErrorInvalidValue;
    Task task;
    task.what = call;
    task.work = [to, byte] {
        return [to, byte] {
            bool set = true;
            for (std::size_t i = 0; i < to.rows && set; ++i) {
                set = set_on_device(address_of(to.row(i)), byte, to.bytes);
            }
            if (!set) set_kernel_failed();
            return true;
        };
    };
    return submit(*stream, std::move(task));
}

Rows rows_of(const void* at, std::size_t pitch, std::size_t bytes, std::size_t rows) {
    return {static_cast<std::byte*>(const_cast<void*>(at)), pitch, bytes, rows};
}

}  // namespace
}  // namespace gpu_emulator

using namespace gpu_emulator;

extern "C" {

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return api_call([&] {
        return copy_rows("cudaMemcpyAsync", rows_of(to, 0, bytes, 1), rows_of(from, 0, bytes, 1),
                         kind, stream, false);
    });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return api_call([&] {
        return copy_rows("cudaMemcpy", rows_of(to, 0, bytes, 1), rows_of(from, 0, bytes, 1), kind,
                         nullptr, true);
    });
}

cudaError_t cudaMemcpy2DAsync(void* to,
                              size_t to_pitch,
                              const void* from,
                              size_t from_pitch,
                              size_t bytes,
                              size_t rows,
                              cudaMemcpyKind kind,
                              cudaStream_t stream) {
    return api_call([&] {
        return copy_rows("cudaMemcpy2DAsync", rows_of(to, to_pitch, bytes, rows),
                         rows_of(from, from_pitch, bytes, rows), kind, stream, false);
    });
}

cudaError_t cudaMemcpy2D(void* to,
                         size_t to_pitch,
                         const void* from,
                         size_t from_pitch,
                         size_t bytes,
                         size_t rows,
                         cudaMemcpyKind kind) {
    return api_call([&] {
        return copy_rows("cudaMemcpy2D", rows_of(to, to_pitch, bytes, rows),
                         rows_of(from, from_pitch, bytes, rows), kind, nullptr, true);
    });
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
    return api_call(
        [&] { return set_rows("cudaMemsetAsync", rows_of(to, 0, bytes, 1), byte, stream); });
}

// Of device memory, for which the host does not wait.
cudaError_t cudaMemset(void* to, int byte, size_t bytes) {
    return cudaMemsetAsync(to, byte, bytes, nullptr);
}

cudaError_t cudaMemset2DAsync(
    void* to, size_t pitch, int byte, size_t bytes, size_t rows, cudaStream_t stream) {
    return api_call([&] {
        return set_rows("cudaMemset2DAsync", rows_of(to, pitch, bytes, rows), byte, stream);
    });
}

cudaError_t cudaMemset2D(void* to, size_t pitch, int byte, size_t bytes, size_t rows) {
    return cudaMemset2DAsync(to, pitch, byte, bytes, rows, nullptr);
}

}  // extern "C"
