#include "based/models/device.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "based/core/error.h"

namespace based {
namespace device_test {

std::string refusal(const std::string& text) {
  try {
    parse_device(text, "--device");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

constexpr int64_t kMuch = int64_t{1} << 30;

// Run by PeakMemory.IsThatOfThisProgramAlone.
TEST(PeakMemory, DISABLED_AfterExec) { _exit(peak_memory(torch::kCPU) < kMuch ? 7 : 8); }

// torchrun's Python becomes this program by exec.
TEST(PeakMemory, IsThatOfThisProgramAlone) {
  const pid_t child = fork();
  if (child == 0) {
    const std::vector<char> much(static_cast<size_t>(kMuch), 1);
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    execl(program.c_str(), program.c_str(), "--gtest_filter=PeakMemory.DISABLED_AfterExec", "--gtest_also_run_disabled_tests", nullptr);
    _exit(much.back());
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_GT(peak_memory(torch::kCPU), 1 << 20);
}

TEST(ParseDevice, TakesWhatIsThereAndNamesWhatIsNot) {
  EXPECT_TRUE(parse_device("cpu", "--device").is_cpu());
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cuda:99999999999999999999", "CPU"})
    EXPECT_EQ(refusal(text), std::string("--device must be cpu, cuda or cuda:N, got '") + text + "'");
  if (torch::cuda::is_available()) {
    EXPECT_EQ(parse_device("cuda", "--device"), torch::Device(torch::kCUDA, 0));
    EXPECT_EQ(refusal("cuda:99").rfind("--device = cuda:99: devices 0..", 0), 0U) << refusal("cuda:99");
  } else {
    for (const char* text : {"cuda", "cuda:1"}) EXPECT_NE(refusal(text).find("BASED_WITH_CUDA"), std::string::npos) << text;
  }
}

}  // namespace device_test
}  // namespace based
