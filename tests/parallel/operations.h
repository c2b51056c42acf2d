// Every collective operation against sums that are computed without collectives.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "based/parallel/collectives.h"

namespace based {

// The values of a rank: they differ between ranks and are not exact in bf16, so that the order of additions shows.
inline Tensor values_of(int64_t rank, int64_t count, torch::ScalarType type) {
  const Tensor numbers = at::arange(count, torch::kDouble);
  return ((numbers * 0.37 + 1.1 * static_cast<double>(rank + 1)).sin() * 1000).to(type);
}

inline Tensor expected_sum(int64_t world, int64_t count, torch::ScalarType type) {
  const auto wide = type == torch::kBFloat16 ? torch::kFloat : type;
  Tensor total = values_of(0, count, type).to(wide);
  for (int64_t rank = 1; rank < world; ++rank) total = total + values_of(rank, count, type).to(wide);
  return total.to(type);
}

inline std::string bytes_of(const Tensor& values) { return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()}; }

// `count`: elements of a part. Called by each rank of a job.
inline void expect_right_operations(Collectives& ranks, int64_t count, torch::ScalarType type) {
  const int64_t rank = ranks.rank(), world = ranks.world();
  const std::string what = "rank " + std::to_string(rank) + " of " + std::to_string(world) + ", " + c10::toString(type);

  const Tensor reduced = values_of(rank, count, type);
  ranks.all_reduce(reduced)->wait();
  EXPECT_TRUE(at::equal(reduced, expected_sum(world, count, type))) << what;
  for (const std::string& bits : ranks.gather_text(bytes_of(reduced))) EXPECT_TRUE(bits == bytes_of(reduced)) << what;

  const Tensor matrix = values_of(rank, 2 * count, type).view({2, count});  // any shape is summed and copied
  ranks.all_reduce(matrix)->wait();
  EXPECT_TRUE(at::equal(matrix, expected_sum(world, 2 * count, type).view({2, count}))) << what;
  ranks.broadcast(matrix, world - 1)->wait();
  EXPECT_TRUE(at::equal(matrix, expected_sum(world, 2 * count, type).view({2, count}))) << what;

  const Tensor part = at::zeros({count}, type);
  ranks.reduce_scatter(part, values_of(rank, world * count, type))->wait();
  EXPECT_TRUE(at::equal(part, expected_sum(world, world * count, type).slice(0, rank * count, (rank + 1) * count))) << what;

  const Tensor whole = at::zeros({world * count}, type);
  const Tensor own = whole.slice(0, rank * count, (rank + 1) * count);
  own.copy_(values_of(rank, count, type));
  ranks.all_gather(whole, own)->wait();
  for (int64_t other = 0; other < world; ++other)
    EXPECT_TRUE(at::equal(whole.slice(0, other * count, (other + 1) * count), values_of(other, count, type))) << what << ", " << other;

  for (int64_t root = 0; root < world; ++root) {
    const Tensor copied = values_of(rank, count, type);
    ranks.broadcast(copied, root)->wait();
    EXPECT_TRUE(at::equal(copied, values_of(root, count, type))) << what << ", root " << root;
  }

  ranks.barrier();
  const std::vector<std::string> texts = ranks.gather_text("text of " + std::to_string(rank));
  ASSERT_EQ(texts.size(), static_cast<size_t>(world));
  for (int64_t other = 0; other < world; ++other) EXPECT_EQ(texts[static_cast<size_t>(other)], "text of " + std::to_string(other)) << what;
}

}  // namespace based
