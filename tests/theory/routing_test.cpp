#include "theory/routing.h"

#include <gtest/gtest.h>

#include "theory/integers.h"
#include "theory/statement.h"

namespace based::theory {
namespace routing_test {

void expect_routed(Random& random, const std::vector<int64_t>& source) {
  const auto rows = static_cast<int64_t>(source.size());
  Program program{{rows, kRouted}, {rows, kRouted}, route_rows(source)};
  IntMatrix u(program.outer), expected(program.outer);
  for (int64_t i = 0; i < rows; ++i) std::fill(u.row(i), u.row(i) + kRouted, random.between(1, 1000));
  for (int64_t i = 0; i < rows; ++i)
    if (const int64_t from = source[static_cast<size_t>(i)]; from >= 0) std::copy(u.row(from), u.row(from) + kRouted, expected.row(i));
  ASSERT_EQ(run(program, u), expected);
  ASSERT_LE(program.depth(), std::max<int64_t>(1, 10 * ceil_log2(rows)));
}

TEST(Routing, BringsAnyRowAnywhere) {
  Random random(4);
  for (int k = 0; k < 3000; ++k) {
    std::vector<int64_t> source(size_t{1} << random.below(7));
    for (int64_t& from : source) from = random.between(-1, static_cast<int64_t>(source.size()) - 1);
    expect_routed(random, source);
  }
}

TEST(Routing, PermutesCopiesAndClears) {
  Random random(5);
  expect_routed(random, {3, 2, 1, 0});
  expect_routed(random, {0, 1, 2, 3});
  expect_routed(random, {3, 3, 3, 3});
  expect_routed(random, {-1, -1, -1, -1});
  expect_routed(random, {0, -1, -1, 3});
  expect_routed(random, {-1});
}

}  // namespace routing_test
}  // namespace based::theory
