// trainer.json of a checkpoint: where the run stands, and what its alarms remember.
#include "framework/training/run_state.h"
#include "model/telemetry/alarms.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    const std::string text(fuzz::text_of(data, size));
    const auto state =
        fuzz::accepted({ErrorCode::kIo}, [&] { return parse_run_state(text, "state"); });
    if (!state) return 0;
    EVENKEEL_FUZZ_CHECK(0 <= state->updates && state->updates <= state->step);
    const std::string written = to_json(*state);
    EVENKEEL_FUZZ_CHECK(to_json(parse_run_state(written, "again")) == written);
    check_resumable(*state, *state, "state");

    AlarmBoard board(alarm_rules({}, {}), 1000);
    if (!fuzz::accepted({ErrorCode::kIo}, [&] { board.restore(state->alarms); })) return 0;
    const std::string alarms = board.state();
    AlarmBoard again(alarm_rules({}, {}), 1000);
    again.restore(alarms);
    EVENKEEL_FUZZ_CHECK(again.state() == alarms && again.active() == board.active());
    return 0;
}
