#include "based/core/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "based/core/error.h"
#include "based/core/files.h"
#include "based/core/json.h"
#include "temporary_folder.h"

namespace based {
namespace profile_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kPhases = ProfileLevel::phases, kLayers = ProfileLevel::layers;

// Runs the body in a session and returns the file.
template <class Body>
Json recorded(const Body& body, const ProfileOptions& options = {}) {
  const TemporaryFolder folder;
  const std::string path = folder.file("profile.json");
  ProfileSession session(path, options);
  body();
  session.finish();
  return parse_json(read_file(path), path);
}

std::vector<Json> events(const Json& file, const std::string& phase) {
  std::vector<Json> found;
  for (const Json& event : file.at("traceEvents"))
    if (event.at("ph") == phase) found.push_back(event);
  return found;
}

std::vector<std::string> names(const Json& file, const std::string& phase = "X") {
  std::vector<std::string> found;
  for (const Json& event : events(file, phase)) found.push_back(event.at("name"));
  return found;
}

TEST(Profile, HasNestedRangesWithTheirArgumentsInTheOrderOfTheirBegins) {
  const Json file = recorded([] {
    const ProfileRange step(kPhases, "step", {{"rows", 3}});
    { const ProfileRange layer(kLayers, profile_name("layers." + std::to_string(0)), {{"layer", 0}, {"kind", 0, "taylor_attention"}}); }
    const ProfileRange layer(kLayers, "layers.1");
  });
  EXPECT_THAT(names(file), ElementsAre("step", "layers.0", "layers.1"));
  const std::vector<Json> ranges = events(file, "X");
  EXPECT_EQ(ranges[0].at("args"), Json({{"rows", 3}}));
  EXPECT_EQ(ranges[1].at("args"), Json({{"layer", 0}, {"kind", "taylor_attention"}}));
  EXPECT_EQ(ranges[0].at("cat"), "phase");
  EXPECT_EQ(ranges[1].at("cat"), "layer");
  const auto begin = [&](size_t i) { return ranges[i].at("ts").get<double>(); };
  const auto end = [&](size_t i) { return begin(i) + ranges[i].at("dur").get<double>(); };
  constexpr double kRounding = 1e-6;  // microseconds
  EXPECT_GE(begin(0), 0);
  EXPECT_LE(begin(0), begin(1));
  EXPECT_LE(end(1), begin(2) + kRounding);
  EXPECT_LE(end(2), end(0) + kRounding);
  for (const Json& range : ranges) EXPECT_EQ(range.at("tid"), ranges[0].at("tid"));
  EXPECT_EQ(file.at("otherData").at("events"), 3);
  EXPECT_EQ(file.at("otherData").at("dropped_events"), 0);
}

TEST(Profile, ShowsTheProcessAndEachThreadUnderItsName) {
  const Json file = recorded(
      [] {
        std::thread([] {
          name_profile_thread("worker");
          const ProfileRange range(kPhases, "in the worker");
        }).join();
        const ProfileRange range(kPhases, "in the test");
      },
      {.process = "a test"});
  std::map<std::string, Json> tracks;  // by name, the thread's number
  for (const Json& event : events(file, "M")) tracks[event.at("args").at("name")] = event.at("tid");
  ASSERT_TRUE(tracks.contains("a test") && tracks.contains("worker")) << file;
  std::map<std::string, Json> threads;
  for (const Json& event : events(file, "X")) threads[event.at("name")] = event.at("tid");
  EXPECT_EQ(threads.at("in the worker"), tracks.at("worker"));
  EXPECT_NE(threads.at("in the worker"), threads.at("in the test"));
}

TEST(Profile, OutsideASessionNothingIsRecorded) {
  EXPECT_FALSE(profiles(kPhases));
  { const ProfileRange before(kPhases, "before"); }
  auto across = std::make_unique<ProfileRange>(kPhases, "across the begin");
  const Json file = recorded([&] {
    EXPECT_TRUE(profiles(kLayers));
    across.reset();
    across = std::make_unique<ProfileRange>(kPhases, "across the end");
  });
  across.reset();
  EXPECT_FALSE(profiles(kPhases));
  EXPECT_THAT(names(file), ElementsAre());
  EXPECT_THAT(names(recorded([] { const ProfileRange range(kPhases, "second"); })), ElementsAre("second"));
}

TEST(Profile, DropsEventsBeyondItsLimitsCountsThemAndKeepsRoomForPhases) {
  testing::internal::CaptureStderr();
  const Json file = recorded(
      [] {
        for (int i = 0; i < 10; ++i) ProfileRange(kLayers, "layer");
        for (int i = 0; i < 4; ++i) ProfileRange(kPhases, "phase");
      },
      {.max_events = 8});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("6 events are left out"));
  const std::vector<std::string> found = names(file);
  EXPECT_EQ(std::count(found.begin(), found.end(), "layer"), 6);
  EXPECT_EQ(std::count(found.begin(), found.end(), "phase"), 2);
  EXPECT_EQ(file.at("otherData").at("dropped_events"), 6);
}

TEST(Profile, AfterTheGivenStepsOnlyPhasesAreRecorded) {
  const Json file = recorded(
      [] {
        for (int i = 0; i < 3; ++i) {
          next_profiled_step();
          const ProfileRange step(kPhases, "step");
          const ProfileRange layer(kLayers, "layer");
        }
      },
      {.layer_steps = 2});
  EXPECT_THAT(names(file), ElementsAre("step", "layer", "step", "layer", "step"));
}

TEST(Profile, SpansOfARequestAreNestedInARowOfTheirOwn) {
  const Json file = recorded([] {
    const auto now = ProfileClock::now();
    const auto at = [&](int milliseconds) { return now + std::chrono::milliseconds(milliseconds); };
    add_profile_span({"queue", "job", 7, at(0), at(2), "r1"});
    add_profile_span({"prompt", "job", 7, at(2), at(5), "r1", {{"tokens", 3}}});
    add_profile_span({"job", "job", 7, at(0), at(9), "r1"});
    add_profile_span({"request", "request", 7, at(0), at(9), "r1"});
  });
  std::vector<std::string> rows;
  for (const Json& event : file.at("traceEvents"))
    if (event.contains("id"))
      rows.push_back(event.at("id").get<std::string>() + ": " + event.at("ph").get<std::string>() + " " +
                     event.at("name").get<std::string>());
  EXPECT_THAT(rows, ElementsAre("job 7: b job", "job 7: b queue", "job 7: e queue", "job 7: b prompt", "job 7: e prompt", "job 7: e job",
                                "request 7: b request", "request 7: e request"));
  const std::vector<Json> begins = events(file, "b");
  EXPECT_EQ(begins[2].at("args"), Json({{"tokens", 3}, {"request", "r1"}}));
  EXPECT_NEAR(begins[2].at("ts").get<double>() - begins[0].at("ts").get<double>(), 2000, 1e-3);
}

TEST(Profile, EventsOfOtherTracksHaveNumbersThatNoThreadHas) {
  const Json file = recorded([] {
    const auto now = ProfileClock::now();
    add_profile_event("cuda:0", {kLayers, "mlp", now, now + std::chrono::microseconds(5)});
  });
  ASSERT_THAT(names(file), ElementsAre("mlp"));
  EXPECT_NEAR(events(file, "X")[0].at("dur").get<double>(), 5, 1e-6);
  EXPECT_GT(events(file, "X")[0].at("tid").get<int64_t>(), int64_t{1} << 31);
}

TEST(Profile, HooksAreCalledForRecordedRangesInTheirNesting) {
  static std::vector<std::string> calls;
  calls.clear();
  const ProfileHooks before = profile_hooks();
  profile_hooks().push = [](const char* name) { calls.emplace_back(name); };
  profile_hooks().pop = [] { calls.emplace_back("pop"); };
  { const ProfileRange off(kPhases, "off"); }
  recorded([] {
    const ProfileRange outer(kPhases, "outer");
    const ProfileRange inner(kLayers, "inner");
  });
  profile_hooks() = before;
  EXPECT_THAT(calls, ElementsAre("outer", "inner", "pop", "pop"));
}

TEST(Profile, IsWrittenAfterAnExceptionToo) {
  const TemporaryFolder folder;
  const std::string path = folder.file("profile.json"), empty = folder.file("empty.json");
  try {
    const ProfileSession session(path);
    { const ProfileRange range(kPhases, "before the error"); }
    throw Error("the command fails");
  } catch (const Error&) {}
  EXPECT_THAT(names(parse_json(read_file(path), path)), ElementsAre("before the error"));
  { const ProfileSession session(empty); }
  EXPECT_FALSE(path_exists(empty)) << "a command that has done nothing replaces no earlier profile";
}

TEST(Profile, RefusesAPathThatCannotBeWrittenBeforeTheWork) {
  const std::string message = message_of<UsageError>([] { const ProfileSession session("/dev/null/x"); });
  EXPECT_THAT(message, AllOf(HasSubstr("--profile /dev/null/x"), HasSubstr("name a file")));
  EXPECT_FALSE(profiles(kPhases));
}

TEST(Profile, SeveralThreadsRecordAtOnce) {
  const Json file = recorded([] {
    std::vector<std::thread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) ProfileRange(kPhases, "work");
      });
    for (std::thread& thread : threads) thread.join();
  });
  std::map<int64_t, int> counts;
  for (const Json& event : events(file, "X")) ++counts[event.at("tid")];
  EXPECT_EQ(file.at("otherData").at("events"), 400);
  int sum = 0;
  for (const auto& [thread, count] : counts) sum += count;
  EXPECT_EQ(sum, 400);
}

}  // namespace profile_test
}  // namespace based
