// Work for the GPU that is recorded once and launched many times: a launch costs the host one call,
// however many kernels there are. Throws kNotBuilt in a build without CUDA.
#pragma once

#include <cstddef>
#include <functional>

#include "framework/stream.h"

struct CUgraphExec_st;

namespace evenkeel {

class Graph {
  public:
    // Runs `work` with `stream`, which must not be the default one, as the current stream. What it
    // puts there does not happen but becomes the graph, with what other streams do between an event
    // of this stream that they wait for and one of theirs that this stream waits for.
    //
    // A graph repeats its work with the same memory. Tensors that are made and gone within `work`
    // are the graph's own; a tensor that `work` makes and leaves has its values after each launch,
    // for the stream of the launch, until the next one. All other memory must live as long as the
    // graph. `work` may not wait for the GPU, nor copy between CPU and CUDA tensors, and should have
    // run once before outside of a graph, so that all that is set up at first use is there.
    //
    // Throws what `work` throws, and kCuda for what cannot be recorded.
    static Graph capture(const Stream& stream, const std::function<void()>& work);

    Graph() = default;  // empty: launch() throws
    Graph(Graph&& other) noexcept;
    Graph& operator=(Graph&& other) noexcept;
    ~Graph();

    // On the current stream, after the launch before. The host does not wait.
    void launch() const;
    bool defined() const { return handle_ != nullptr; }
    // Kernels, copies and the like.
    std::size_t nodes() const { return nodes_; }

  private:
    CUgraphExec_st* handle_ = nullptr;
    std::size_t nodes_ = 0;
};

}  // namespace evenkeel
