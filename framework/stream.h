// CUDA streams and events. Operations on CUDA tensors go to the calling thread's current stream and
// return at once; what they write may be used by later work on that stream, by other streams after
// an event, and by the host after synchronize(). Everything here throws kNotBuilt in a build
// without CUDA, and kCuda with one clear sentence where there is no GPU or the driver is too old
// for this build.
#pragma once

#include <functional>
#include <memory>

struct CUstream_st;
struct CUevent_st;

namespace evenkeel {

class Event;

// Where both have work, the GPU prefers that of a stream of high priority.
enum class StreamPriority { kNormal, kHigh };

class Stream {
  public:
    // A new stream; it does not wait for the default stream, nor that for it.
    explicit Stream(StreamPriority priority = StreamPriority::kNormal);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    void synchronize() const;             // the host waits for all work so far
    void wait(const Event& event) const;  // later work waits for what the event has recorded
    bool is_capturing() const;            // its work goes into a CUDA graph
    bool is_default() const { return handle_ == nullptr; }
    CUstream_st* handle() const { return handle_.get(); }
    // Keeps the stream alive beyond this object: a buffer does that, to be freed in its order.
    const std::shared_ptr<CUstream_st>& shared_handle() const { return handle_; }

    // The calling thread's stream for operations: the device's default stream unless a StreamScope
    // says otherwise.
    static const Stream& current();

  private:
    struct Default {};
    explicit Stream(Default) {}
    std::shared_ptr<CUstream_st> handle_;  // null: the default stream
};

// Makes a stream the calling thread's current one for a scope.
class StreamScope {
  public:
    explicit StreamScope(const Stream& stream);
    ~StreamScope();
    StreamScope(const StreamScope&) = delete;
    StreamScope& operator=(const StreamScope&) = delete;

  private:
    const Stream* before_;
};

// Called now and then while the host waits for the GPU, with the seconds it has waited so far. May
// throw, which ends the wait: the GPU may never answer where another process of a collective died.
using WaitGuard = std::function<void(double waited_seconds)>;
// For all waits of all threads from now on: Stream::synchronize, Event::synchronize, copies of
// tensors between devices. Empty: none, and waits are left to the driver.
void set_wait_guard(WaitGuard guard);

// Events that take no time cost less where they only order streams.
enum class EventTiming { kOn, kOff };

// A point in a stream's work.
class Event {
  public:
    explicit Event(EventTiming timing = EventTiming::kOn);
    ~Event();
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;

    void record(const Stream& stream);
    // The host waits for the recorded point; not at all if nothing is recorded.
    void synchronize() const;
    bool done() const;
    CUevent_st* handle() const { return handle_; }
    // Milliseconds of device time between two recorded events with timing; waits for both.
    static double elapsed_ms(const Event& from, const Event& to);

  private:
    CUevent_st* handle_ = nullptr;
};

}  // namespace evenkeel
