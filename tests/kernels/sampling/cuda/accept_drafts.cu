// Compares the copies with the rows that they are to equal, for values of sizes and alignments that vectors do not divide.
#include "based/kernels/sampling/accept_drafts.h"

#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;

constexpr int64_t kTokens = 8, kValues = 200;

void verify_case(Report& report, int64_t accepted) {
  std::vector<int64_t> tokens, drafts;
  for (int64_t i = 0; i < kTokens; ++i) tokens.push_back(100 + i);
  for (int64_t i = 0; i + 1 < kTokens; ++i) drafts.push_back(i == accepted ? 0 : tokens[i]);
  const Buffer tokens_there = upload(tokens), drafts_there = upload(drafts);
  std::vector<Buffer> memory;
  std::vector<kernels::AcceptedRow> values;
  for (int64_t i = 0; i < kValues; ++i) {
    const int64_t count = i == 3 ? 200'001 : i * 53 % 4100, rows = kTokens - i % 2, odd = i % 3;
    memory.push_back(random_buffer(count / 4 + 2, DType::f32, 1, 2 * i + 1));
    memory.push_back(random_buffer(rows * count / 4 + 2, DType::f32, 1, 2 * i + 2));
    values.push_back({memory[memory.size() - 2].as<char>() + odd, memory.back().as<char>() + odd, count, rows});
  }
  const auto bytes_at = [](const void* there, int64_t count) {
    std::vector<char> here(static_cast<size_t>(count));
    if (count > 0) check(cudaMemcpy(here.data(), there, here.size(), cudaMemcpyDeviceToHost), "download");
    return here;
  };
  std::vector<std::vector<char>> expected;
  for (const kernels::AcceptedRow& value : values)
    expected.push_back(accepted < value.rows ? bytes_at(static_cast<const char*>(value.from) + accepted * value.count, value.count)
                                             : bytes_at(value.to, value.count));
  check(kernels::cuda::accept_drafts({tokens_there.as<int64_t>(), drafts_there.as<int64_t>(), kTokens - 1, values.data(), kValues}, {}));
  check(cudaDeviceSynchronize(), "accept_drafts");
  int64_t different = 0;
  for (int64_t i = 0; i < kValues; ++i) different += bytes_at(values[i].to, values[i].count) == expected[i] ? 0 : 1;
  report.expect("accept_drafts, " + std::to_string(accepted) + " right, values that differ", static_cast<double>(different), 0);
}

void verify_accept_drafts(Report& report) {
  for (int64_t accepted = 0; accepted < kTokens; ++accepted) verify_case(report, accepted);
}

const DefineFamily<Report> kAcceptDrafts("accept_drafts", verify_accept_drafts);

}  // namespace
}  // namespace based::tests
