#include "framework/training/alarm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "framework/error.h"

namespace evenkeel {
namespace {

using Kind = AlarmRule::Test;

AlarmRule rule_of(Kind test, double threshold, std::int64_t records = 1) {
    AlarmRule rule;
    rule.name = "rule";
    rule.metric = "metric";
    rule.test = test;
    rule.setting = {AlarmAction::kWarn, threshold, records};
    rule.row = "layer", rule.column = "head";
    rule.advice = "the manual";
    return rule;
}

MetricRecord scalar(std::int64_t step, double value) {
    MetricRecord record;
    record.step = step;
    record.scalars = {{"metric", value}};
    return record;
}

MetricRecord table(std::int64_t step, const std::vector<float>& values) {
    MetricRecord record;
    record.step = step;
    record.tables = {{"metric", 2, static_cast<std::int64_t>(values.size()) / 2, values}};
    return record;
}

// "+3 -7": raised at step 3, over at step 7.
std::string story(AlarmBoard& board, const std::vector<double>& values) {
    std::string text;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto step = static_cast<std::int64_t>(i + 1);
        for (const AlarmEvent& event : board.check(scalar(step, values[i]))) {
            text += concat(text.empty() ? "" : " ", event.raised ? "+" : "-", step);
        }
    }
    return text;
}
std::string story(const AlarmRule& rule,
                  const std::vector<double>& values,
                  std::int64_t steps = 100) {
    AlarmBoard board({rule}, steps);
    return story(board, values);
}

TEST(AlarmTest, IsRaisedOnceAndClearsWhenTheNumberIsBack) {
    EXPECT_EQ(story(rule_of(Kind::kAbove, 10.0), {9, 10, 11, 12, 11, 10, 9, 11}), "+3 -6 +8");
    EXPECT_EQ(story(rule_of(Kind::kBelow, 10.0), {11, 10, 9, 8, 10}), "+3 -5");
}

TEST(AlarmTest, WaitsForAsManyRecordsInARowAsItIsTold) {
    const AlarmRule rule = rule_of(Kind::kAbove, 10.0, 3);
    EXPECT_EQ(story(rule, {11, 11, 9, 11, 11, 11, 9, 9, 11, 9, 9, 9}), "+6 -12");
}

TEST(AlarmTest, TakesNanForOutOfBoundsInBothDirections) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double inf = std::numeric_limits<double>::infinity();
    EXPECT_EQ(story(rule_of(Kind::kAbove, 10.0), {1, nan, 1, inf}), "+2 -3 +4");
    EXPECT_EQ(story(rule_of(Kind::kBelow, 10.0), {11, nan, 11, -inf}), "+2 -3 +4");
    EXPECT_EQ(story(rule_of(Kind::kDrift, 4.0), {11, nan}), "+2");
}

TEST(AlarmTest, MeasuresDriftFromTheFirstValueBothWays) {
    EXPECT_EQ(story(rule_of(Kind::kDrift, 4.0), {2, 8, 8.1, 2, 0.5, 0.49}), "+3 -4 +6");
    EXPECT_EQ(story(rule_of(Kind::kDrift, 4.0), {-2, -8.1}), "+2") << "by magnitude";
    EXPECT_EQ(story(rule_of(Kind::kDrift, 4.0), {0, 100}), "") << "0 has no multiple";
}

TEST(AlarmTest, TellsALowNumberThatFallsFromOneThatRises) {
    std::vector<double> falling, rising;
    for (int i = 0; i < 20; ++i) {
        falling.push_back(0.09 - 0.001 * i);
        rising.push_back(0.05 + 0.001 * i);
    }
    // A line is fitted to eight records at least.
    EXPECT_EQ(story(rule_of(Kind::kBelowFalling, 0.1), falling), "+8");
    EXPECT_EQ(story(rule_of(Kind::kBelowFalling, 0.1), rising), "");
    for (double& value : falling) value += 0.0195;
    EXPECT_EQ(story(rule_of(Kind::kBelowFalling, 0.1), falling), "+11") << "0.0995 is the first";
}

TEST(AlarmTest, ComparesTheDoublingTimeWithTheStepsThatAreLeft) {
    AlarmRule rule = rule_of(Kind::kDoubling, 0.26);
    rule.least = 25.0;
    std::vector<double> values;  // doubles every 10 steps from 30
    for (int i = 0; i < 70; ++i) values.push_back(30.0 * std::pow(2.0, i / 10.0));
    // 10 steps < 0.26 (100 - step) up to step 61.
    EXPECT_EQ(story(rule, values, 100), "+8 -62");
    rule.least = 100.0;
    EXPECT_EQ(story(rule, values, 100), "+19 -62") << "30 2^(17.4 / 10) = 100";
    for (double& value : values) value = 1e4 / value;
    rule.least = 1.0;
    EXPECT_EQ(story(rule, values, 100), "") << "what shrinks";
}

TEST(AlarmTest, NamesTheWorstPlaceOfATable) {
    AlarmBoard board({rule_of(Kind::kAbove, 100.0)}, 100);
    EXPECT_TRUE(board.check(table(1, {1, 2, 3, 4, 5, 100})).empty());
    const auto events = board.check(table(2, {1, 101, 3, 4, 250.5, 5}));
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].row, 1);
    EXPECT_EQ(events[0].column, 1);
    EXPECT_EQ(events[0].count, 2);
    EXPECT_EQ(events[0].of, 6);
    EXPECT_EQ(events[0].text,
              "alarm rule: metric of layer 1 head 1 is 250.5, above 100, since step 2 (2 of 6); "
              "read the manual");
    EXPECT_EQ(board.active(), 1);
    EXPECT_TRUE(board.check(table(3, {1, 1, 3, 4, 250.5, 101})).empty()) << "once until it clears";
    const auto over = board.check(table(4, {1, 1, 3, 4, 5, 6}));
    ASSERT_EQ(over.size(), 1u);
    EXPECT_EQ(over[0].text, "alarm rule (metric) is over at step 4");
    EXPECT_EQ(board.active(), 0);
}

TEST(AlarmTest, PrintsAsManyDigitsAsTellAValueFromItsLimit) {
    AlarmBoard board({rule_of(Kind::kAbove, 100.0)}, 100);
    const auto events = board.check(table(1, {1, 2, 3, 4, 100.0023f, 5}));
    ASSERT_EQ(events.size(), 1u);
    EXPECT_NE(events[0].text.find(" is 100.002, above 100,"), std::string::npos) << events[0].text;
}

TEST(AlarmTest, CanLookAtTheMeanOfARow) {
    AlarmRule rule = rule_of(Kind::kBelow, 2.0);
    rule.of_row_means = true;
    AlarmBoard board({rule}, 100);
    EXPECT_TRUE(board.check(table(1, {0, 4, 4, 2, 2, 2})).empty()) << "means 8/3 and 2";
    const auto events = board.check(table(2, {0, 6, 0, 0, 5, 0}));
    ASSERT_EQ(events.size(), 1u) << "means 2 and 5/3";
    EXPECT_EQ(events[0].row, 1);
    EXPECT_EQ(events[0].column, -1);
    EXPECT_NEAR(events[0].value, 5.0 / 3.0, 1e-9);
}

TEST(AlarmTest, SleepsThroughRecordsWithoutItsNumber) {
    AlarmBoard board({rule_of(Kind::kAbove, 1.0, 2)}, 100);
    EXPECT_TRUE(board.check(scalar(1, 2.0)).empty());
    MetricRecord other;
    other.step = 2;
    EXPECT_TRUE(board.check(other).empty());
    EXPECT_EQ(board.check(scalar(3, 2.0)).size(), 1u);
}

TEST(AlarmTest, RulesThatAreOffAreNotWatched) {
    AlarmRule rule = rule_of(Kind::kAbove, 1.0);
    rule.setting.action = AlarmAction::kNone;
    AlarmBoard board({rule}, 100);
    EXPECT_TRUE(board.empty());
    EXPECT_TRUE(board.check(scalar(1, 2.0)).empty());
}

TEST(AlarmTest, GoesOnFromItsState) {
    const std::vector<AlarmRule> rules = {rule_of(Kind::kAbove, 10.0, 3)};
    AlarmBoard before(rules, 100), after(rules, 100);
    EXPECT_EQ(story(before, {11, 11}), "");
    after.restore(before.state());
    const auto events = after.check(scalar(3, 11));
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].since, 1);
    AlarmBoard last(rules, 100);
    last.restore(after.state());
    EXPECT_EQ(last.active(), 1);
    EXPECT_TRUE(last.check(scalar(4, 11)).empty()) << "raised already";

    AlarmBoard drift({rule_of(Kind::kDrift, 4.0)}, 100), later({rule_of(Kind::kDrift, 4.0)}, 100);
    drift.check(table(1, {1, 2, 3, 4}));
    later.restore(drift.state());
    EXPECT_TRUE(later.check(table(2, {4, 2, 3, 4})).empty());
    EXPECT_EQ(later.check(table(3, {4.1f, 2, 3, 4})).size(), 1u);
    EXPECT_THROW(later.restore("{\"rule of metric\": 3}"), Error);
    later.restore("{}");
    for (const char* state : {R"({"numbers": 1099511627776, "first": [], "cells": []})",
                              R"({"numbers": 1e300, "first": [], "cells": []})",
                              R"({"numbers": -1, "first": [], "cells": []})",
                              R"({"numbers": 4, "first": [], "cells": [[4, 1, 0, 1, 1]]})",
                              R"({"numbers": 4, "first": [], "cells": [[0, 1.5, 0, 1, 1]]})"}) {
        EXPECT_THROW(later.restore(concat("{\"rule of metric\": ", state, "}")), Error) << state;
    }
}

TEST(AlarmTest, IsNotOverAfterRestoreForWantOfALine) {
    std::vector<double> falling, rising;
    for (int i = 0; i < 20; ++i) {
        falling.push_back(0.09 - 0.001 * i);
        rising.push_back(0.05 + 0.001 * i);
    }
    const AlarmRule rule = rule_of(Kind::kBelowFalling, 0.1, 5);
    AlarmBoard before({rule}, 100);
    EXPECT_EQ(story(before, falling), "+12");
    const auto resumed = [&](const std::vector<double>& values) {
        AlarmBoard after({rule}, 100);
        after.restore(before.state());
        return story(after, values);
    };
    EXPECT_EQ(resumed(falling), "");
    EXPECT_EQ(resumed(rising), "") << "still below: an alarm is not over because it falls no more";
    EXPECT_EQ(resumed(std::vector<double>(20, 0.2)), "-5") << "out of reach, whatever the line";
    EXPECT_EQ(resumed({NAN, 0.05, NAN, 0.05}), "");

    AlarmRule doubling = rule_of(Kind::kDoubling, 0.26, 2);
    doubling.least = 25.0;
    std::vector<double> growing;
    for (int i = 0; i < 20; ++i) growing.push_back(30.0 * std::pow(2.0, i / 10.0));
    AlarmBoard grown({doubling}, 100), later({doubling}, 100);
    EXPECT_EQ(story(grown, growing), "+9");
    later.restore(grown.state());
    EXPECT_EQ(story(later, growing), "");
}

TEST(AlarmTest, RefusesSettingsWithoutMeaning) {
    AlarmSetting setting{AlarmAction::kWarn, 1.0, 1};
    setting.validate("alarms.x");
    setting.records = 0;
    EXPECT_THROW(setting.validate("alarms.x"), Error);
    setting = {AlarmAction::kWarn, -1.0, 1};
    EXPECT_THROW(setting.validate("alarms.x"), Error);
}

}  // namespace
}  // namespace evenkeel
