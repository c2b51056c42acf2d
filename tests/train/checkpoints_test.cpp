#include "based/train/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "based/core/files.h"
#include "based/core/manifest.h"
#include "tests/core/file_size_limit.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace checkpoints_test {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void write_two(const std::string& folder, int64_t step) {
  write_file_atomic((fs::path(folder) / "weights").string(), std::string(1000, 'w') + std::to_string(step));
  write_file_atomic((fs::path(folder) / "state").string(), std::to_string(step));
}

void save(Checkpoints& checkpoints, int64_t step, int64_t best = -1) {
  checkpoints.save(step, best, [&](const std::string& folder) { write_two(folder, step); });
}

std::string target(const TemporaryFolder& folder, const char* link) { return fs::read_symlink(folder.file(link)).string(); }

TEST(Checkpoints, TheNewestAndTheBestStay) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder.path().string(), 2);
  EXPECT_EQ(checkpoints.newest_whole(), std::nullopt);
  for (int64_t step = 1; step <= 6; ++step) save(checkpoints, step, step < 2 ? -1 : 2);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(2, 5, 6));
  EXPECT_EQ(checkpoints.newest_whole(), 6);
  EXPECT_EQ(target(folder, "latest"), "step-6");
  EXPECT_EQ(target(folder, "best"), "step-2");
  EXPECT_EQ(folder.entries(), 5u) << "nothing temporary is left";
  save(checkpoints, 6, 2);
  EXPECT_EQ(checkpoints.newest_whole(), 6) << "a step may be saved again";
}

TEST(Checkpoints, OtherNamesAreNotTaken) {
  const TemporaryFolder folder;
  for (const char* name : {"step-", "step-07", "step--3", "step-8x", "step-9.tmp", "damaged-step-4", "step-99999999999999999999"})
    fs::create_directory(folder.file(name));
  Checkpoints checkpoints(folder.path().string(), 1);
  EXPECT_TRUE(checkpoints.steps().empty());
  checkpoints.sweep();
  EXPECT_FALSE(fs::exists(folder.file("step-9.tmp")));
  EXPECT_EQ(folder.entries(), 6u);
}

// However the newest checkpoint is damaged, it is set aside and the previous one is used.
TEST(Checkpoints, ADamagedNewestGivesWayToTheOneBefore) {
  const auto damage_each = [](const auto& damage) {
    for (const char* name : {"weights", "state", kManifestName}) {
      const TemporaryFolder folder;
      Checkpoints checkpoints(folder.path().string(), 3);
      for (const int64_t step : {10, 20}) save(checkpoints, step);
      damage(checkpoints.path(20) + "/" + name);
      EXPECT_EQ(checkpoints.newest_whole(), 10) << name;
      EXPECT_THAT(checkpoints.steps(), ElementsAre(10)) << name;
      EXPECT_TRUE(fs::is_directory(folder.file("damaged-step-20"))) << name;
      save(checkpoints, 20);
      EXPECT_EQ(checkpoints.newest_whole(), 20) << name;
    }
  };
  damage_each([](const std::string& path) { fs::remove(path); });
  damage_each([](const std::string& path) { fs::resize_file(path, fs::file_size(path) - 1); });
  damage_each([](const std::string& path) { fs::resize_file(path, 0); });
  damage_each([](const std::string& path) {
    std::string bytes = read_file(path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    write_file_atomic(path, bytes);
  });
}

TEST(Checkpoints, WhereAllAreDamagedNothingIsTouched) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder.path().string(), 3);
  for (const int64_t step : {10, 20}) {
    save(checkpoints, step);
    fs::resize_file(checkpoints.path(step) + "/weights", 3);
  }
  EXPECT_THAT(message_of<Error>([&] { checkpoints.newest_whole(); }), HasSubstr("all 2 checkpoints are damaged"));
  EXPECT_THAT(checkpoints.steps(), ElementsAre(10, 20));
}

TEST(Checkpoints, ASaveThatFailsLeavesThoseBefore) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder.path().string(), 1);
  save(checkpoints, 1);
  std::string message;
  {
    const FileSizeLimit limit(500);
    message = message_of<Error>([&] { save(checkpoints, 2); });
  }
  EXPECT_THAT(message, HasSubstr("step-2.tmp/weights: cannot write: File too large"));
  EXPECT_EQ(checkpoints.newest_whole(), 1);
  EXPECT_EQ(target(folder, "latest"), "step-1");
  EXPECT_EQ(folder.entries(), 2u);
  save(checkpoints, 3);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(3));
}

// The checkpoint of the best evaluation, at step 2, could not be saved: the best saved checkpoint must be kept.
TEST(Checkpoints, ABestThatCouldNotBeSavedLeavesTheOneBefore) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder.path().string(), 1);
  save(checkpoints, 1, 1);
  {
    const FileSizeLimit limit(500);
    EXPECT_THROW(save(checkpoints, 2, 2), Error);
  }
  for (const int64_t step : {3, 4}) {
    save(checkpoints, step, 2);
    EXPECT_EQ(target(folder, "best"), "step-1") << step;
    EXPECT_THAT(checkpoints.steps(), ElementsAre(1, step));
  }
  save(checkpoints, 5, 5);
  EXPECT_EQ(target(folder, "best"), "step-5");
}

TEST(Checkpoints, LaterOnesAreSetAsideAndNotRemoved) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder.path().string(), 10);
  for (int64_t step = 1; step <= 4; ++step) save(checkpoints, step, step);
  EXPECT_EQ(checkpoints.set_aside_after(2, 1).size(), 2U);
  EXPECT_THAT(checkpoints.steps(), ElementsAre(1, 2));
  EXPECT_EQ(target(folder, "latest"), "step-2");
  EXPECT_EQ(target(folder, "best"), "step-1");
  for (const int64_t step : {3, 4})
    EXPECT_EQ(read_file(folder.file("aside-step-" + std::to_string(step) + "/state")), std::to_string(step));
  save(checkpoints, 3);
  checkpoints.set_aside_after(2, 4);
  EXPECT_TRUE(fs::is_directory(folder.file("aside-step-3-2"))) << "the first one stays";
  EXPECT_FALSE(fs::exists(fs::symlink_status(folder.file("best")))) << "the best has been set aside";
  EXPECT_EQ(message_of<UsageError>([&] { checkpoints.require_whole(2); }), "");
  EXPECT_THAT(message_of<UsageError>([&] { checkpoints.require_whole(3); }),
              HasSubstr("no checkpoint of step 3; there are those of steps 1, 2"));
  fs::resize_file(checkpoints.path(2) + "/weights", 3);
  EXPECT_THAT(message_of<Error>([&] { checkpoints.require_whole(2); }), HasSubstr("weights"));
}

// A process that ends between the two renames of a save leaves the replaced checkpoint and the new one as temporary folders.
TEST(Checkpoints, AnInterruptedReplacementIsUndone) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder.path().string(), 2);
  for (const int64_t step : {1, 2}) save(checkpoints, step);
  fs::rename(checkpoints.path(2), folder.file("step-2.replaced.tmp"));
  fs::create_directory(folder.file("step-2.tmp"));
  checkpoints.restore_replaced();
  EXPECT_THAT(checkpoints.steps(), ElementsAre(1, 2));
  EXPECT_EQ(checkpoints.newest_whole(), 2);
  fs::create_directory(folder.file("step-2.replaced.tmp"));
  checkpoints.restore_replaced();
  checkpoints.sweep();
  EXPECT_EQ(checkpoints.newest_whole(), 2);
  EXPECT_EQ(folder.entries(), 3U) << "two checkpoints and the link";
}

// Kills a process that saves in a loop: there is a complete checkpoint, and sweep() removes temporary folders.
TEST(Checkpoints, KilledAtAnyMomentThereIsAWholeOne) {
  const TemporaryFolder folder;
  Checkpoints checkpoints(folder.path().string(), 2);
  int64_t step = 0;
  save(checkpoints, step);
  int cut_short = 0;
  for (int round = 0; round < 40 || (cut_short <= 5 && round < 400); ++round) {
    const pid_t child = fork();
    if (child == 0)
      while (true) save(checkpoints, ++step, 0);
    usleep(static_cast<useconds_t>(1500 + 733 * (round % 40)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    for (const auto& entry : fs::directory_iterator(folder.path())) cut_short += entry.path().extension() == ".tmp";
    checkpoints.sweep();
    const auto found = checkpoints.newest_whole();
    ASSERT_TRUE(found.has_value());
    EXPECT_GE(*found, step);
    EXPECT_EQ(read_file(checkpoints.path(*found) + "/state"), std::to_string(*found));
    for (const auto& entry : fs::directory_iterator(folder.path()))
      EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr("damaged"))) << "round " << round;
    step = *found;
  }
  EXPECT_GT(cut_short, 5) << "some of the kills must come inside a save";
}

}  // namespace checkpoints_test
}  // namespace based
