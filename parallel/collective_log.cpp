#include "parallel/collective_log.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace evenkeel {
namespace {

// A host that waits for its GPU says so about once a millisecond.
constexpr std::int64_t kGpuWaitLasts = 1'000'000'000;

}  // namespace

CollectiveLog& CollectiveLog::instance() {
    static CollectiveLog log;
    return log;
}

std::int64_t CollectiveLog::now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

int CollectiveLog::add_group(CollectiveGroup group) {
    const std::lock_guard lock(mutex_);
    groups_.push_back(std::move(group));
    return static_cast<int>(groups_.size()) - 1;
}

CollectiveRecord* CollectiveLog::find(std::int64_t index) {
    CollectiveRecord& record = entries_[static_cast<std::size_t>(index) % kEntries];
    return record.index == index ? &record : nullptr;
}

std::int64_t CollectiveLog::begin(CollectiveRecord record, std::int64_t* sequence) {
    const std::int64_t time = now();
    const std::lock_guard lock(mutex_);
    if (++depth_ > 1) {
        if (CollectiveRecord* outer = find(current_)) outer->waits = time;
        return 0;
    }
    record.index = current_ = ++last_;
    record.sequence = sequence == nullptr ? 0 : ++*sequence;
    record.asked = record.waits = time;
    record.returned = record.done = 0;
    goes_on_ = false;
    gpu_wait_seen_ = 0;
    entries_[static_cast<std::size_t>(record.index) % kEntries] = record;
    return record.index;
}

void CollectiveLog::end(std::int64_t index) {
    const std::int64_t time = now();
    const std::lock_guard lock(mutex_);
    --depth_;
    if (index == 0) return;
    current_ = 0;
    if (CollectiveRecord* record = find(index)) {
        record->returned = time;
        if (goes_on_) return;
        record->done = progress_ = time;
    }
}

std::int64_t CollectiveLog::goes_on() {
    const std::lock_guard lock(mutex_);
    goes_on_ = true;
    return current_;
}

void CollectiveLog::done(std::int64_t index) {
    const std::int64_t time = now();
    const std::lock_guard lock(mutex_);
    progress_ = time;
    if (CollectiveRecord* record = find(index)) record->done = time;
}

void CollectiveLog::waits_for_gpu(double seconds) {
    const std::int64_t time = now();
    const std::lock_guard lock(mutex_);
    gpu_wait_seen_ = time;
    gpu_wait_since_ = time - static_cast<std::int64_t>(seconds * 1e9);
}

HostPosition CollectiveLog::position() const {
    const std::int64_t time = now();
    const std::lock_guard lock(mutex_);
    HostPosition position;
    const CollectiveRecord& last = entries_[static_cast<std::size_t>(last_) % kEntries];
    position.in_operation = current_ != 0;
    position.since = position.in_operation ? last.waits : last.returned;
    position.waits_for_gpu = gpu_wait_seen_ != 0 && time - gpu_wait_seen_ < kGpuWaitLasts;
    if (position.waits_for_gpu && !position.in_operation) position.since = gpu_wait_since_;
    position.progress = progress_;
    const auto most = static_cast<std::int64_t>(kEntries);
    for (std::int64_t index = std::max<std::int64_t>(1, last_ - most + 1); index <= last_;
         ++index) {
        const CollectiveRecord& record = entries_[static_cast<std::size_t>(index) % kEntries];
        if (record.returned == 0 || record.done != 0) continue;
        position.oldest_on_gpu = record.asked;
        break;
    }
    return position;
}

std::vector<CollectiveRecord> CollectiveLog::records() const {
    const std::lock_guard lock(mutex_);
    std::vector<CollectiveRecord> records;
    const auto most = static_cast<std::int64_t>(kEntries);
    for (std::int64_t index = std::max<std::int64_t>(1, last_ - most + 1); index <= last_;
         ++index) {
        records.push_back(entries_[static_cast<std::size_t>(index) % kEntries]);
    }
    return records;
}

std::vector<CollectiveGroup> CollectiveLog::groups() const {
    const std::lock_guard lock(mutex_);
    return groups_;
}

}  // namespace evenkeel
