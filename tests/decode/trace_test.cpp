#include "based/decode/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "based/decode/plan.h"
#include "based/ops/norm/rms_norm.h"

namespace based::decode {
namespace trace_test {

using testing::HasSubstr;
using torch::Tensor;

std::vector<std::string> outermost_names(Trace& trace) {
  std::vector<std::string> names;
  for (const size_t call : trace.outermost()) names.push_back(trace.calls()[call].name);
  return names;
}

const Call& outermost(Trace& trace, size_t i) { return trace.calls()[trace.outermost().at(i)]; }

TEST(Trace, HearsWhatOperatorsReadAndWrite) {
  const torch::InferenceMode inference;
  Tensor x = torch::ones({4, 8}), weight = torch::ones({8});
  Trace trace(kernels::kH200, nullptr);
  const Span there = trace.span_of(x);
  const Tensor y = ops::rms_norm(x, weight, 1e-5);
  x.add_(y);
  trace.stop();
  EXPECT_EQ(outermost_names(trace), (std::vector<std::string>{"based::rms_norm", "aten::add_"}));
  const Call &norm = outermost(trace, 0), &add = outermost(trace, 1);
  EXPECT_EQ(norm.reads.at(0), there);
  EXPECT_TRUE(norm.has_new_results);
  EXPECT_FALSE(add.has_new_results);
  EXPECT_EQ(add.writes, Spans{there});
  EXPECT_EQ(add.reads.at(1), norm.writes.at(0)) << "the norm's result is what is added";
  EXPECT_TRUE(trace.is_external(there));
  EXPECT_FALSE(trace.is_external(norm.writes.at(0)));
}

TEST(Trace, StopsListening) {
  const torch::InferenceMode inference;
  const Tensor x = torch::ones({4});
  Trace trace(kernels::kH200, nullptr);
  trace.stop();
  x.exp();
  EXPECT_TRUE(trace.calls().empty());
  Trace another(kernels::kH200, nullptr);
  x.exp();
  another.stop();
  EXPECT_EQ(another.calls().size(), 1U);
}

// The allocator reuses freed memory: two values may have the same address.
TEST(Trace, MemoryThatIsTakenAgainIsAnotherValue) {
  const torch::InferenceMode inference;
  const Tensor x = torch::ones({64});
  Trace trace(kernels::kH200, nullptr);
  constexpr int kTimes = 400;
  for (int i = 0; i < kTimes; ++i) x.exp();
  trace.stop();
  bool again = false;
  for (size_t i = 0; i < kTimes; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Span a = outermost(trace, i).writes.at(0), b = outermost(trace, j).writes.at(0);
      EXPECT_FALSE(overlap(a, b));
      again = again || share_memory(a, b);
    }
  }
  EXPECT_TRUE(again) << "this test needs an allocator that gives memory away again";
}

TEST(Trace, ViewsAreOfTheValueThatTheyView) {
  const torch::InferenceMode inference;
  const Tensor x = torch::ones({6, 4});
  Trace trace(kernels::kH200, nullptr);
  const Span whole = trace.span_of(x), row = trace.span_of(x.narrow(0, 2, 1)), next = trace.span_of(x.narrow(0, 3, 1));
  trace.stop();
  EXPECT_TRUE(contains(whole, row));
  EXPECT_EQ(row.begin, 2 * 4 * 4);
  EXPECT_EQ(row.bytes(), 4 * 4);
  EXPECT_FALSE(overlap(row, next));
}

TEST(Trace, ColumnsOfAMatrixAreApart) {
  const torch::InferenceMode inference;
  const Tensor x = torch::ones({6, 8});
  Trace trace(kernels::kH200, nullptr);
  const auto columns = [&](int64_t first, int64_t count) { return trace.span_of(x.narrow(1, first, count)); };
  const Span whole = trace.span_of(x), left = columns(0, 3), right = columns(3, 5), row = trace.span_of(x.narrow(0, 2, 1)),
             below = trace.span_of(x.narrow(0, 1, 5).narrow(1, 0, 3)), other_rows = trace.span_of(x.view({12, 4}).narrow(1, 0, 3));
  trace.stop();
  EXPECT_FALSE(overlap(left, right));
  EXPECT_FALSE(overlap(right, left));
  EXPECT_FALSE(overlap(below, right)) << "of later rows";
  EXPECT_FALSE(overlap(right, below));
  EXPECT_TRUE(overlap(columns(0, 4), right)) << "both have the fourth column";
  EXPECT_TRUE(overlap(right, columns(0, 4)));
  EXPECT_TRUE(overlap(below, left));
  for (const Span& all : {whole, row, other_rows}) {
    EXPECT_TRUE(overlap(left, all));
    EXPECT_TRUE(overlap(all, right));
  }
}

// For the units a and b: a's weight is constant, b's state is its own, and the tensor that a writes and b reads is neither.
TEST(Effects, AreStatedByTheOperators) {
  const torch::InferenceMode inference;
  const Tensor weight = torch::ones({4}), x = torch::ones({4}), shared = torch::zeros({4});
  Tensor state = torch::zeros({4});
  Trace trace(kernels::kH200, nullptr);
  const Span weight_span = trace.span_of(weight), state_span = trace.span_of(state), shared_span = trace.span_of(shared);
  const Tensor y = x.mul(weight);
  state.add_(y);
  shared.add_(y);
  const Tensor z = shared.exp();
  trace.stop();
  std::vector<Unit> units;
  for (const size_t call : trace.outermost()) {
    const Call& made = trace.calls()[call];
    units.push_back({made.name, made.reads, made.writes, nullptr, "", {}});
  }
  const Effects effects(units, [&](const Span& span) { return trace.is_external(span); });
  EXPECT_TRUE(effects.is_constant(weight_span));
  EXPECT_FALSE(effects.is_constant(state_span));
  EXPECT_FALSE(effects.is_constant(units[0].writes[0])) << "made in the step";
  EXPECT_TRUE(effects.is_constant({})) << "a bias that is not there";
  EXPECT_TRUE(effects.is_private(state_span, 1));
  EXPECT_FALSE(effects.is_private(state_span, 0));
  EXPECT_FALSE(effects.is_private(shared_span, 2)) << "read by another";
  EXPECT_TRUE(effects.is_wanted(units[0].writes[0], 1));
  EXPECT_FALSE(effects.is_wanted(units[0].writes[0], 3));
  EXPECT_TRUE(effects.is_wanted(state_span, 4)) << "outlives the step";
}

// An operator without a fused form runs unchanged, and the plan gives the reason.
TEST(Plan, SaysWhyAnOperatorRunsAsItIs) {
  const torch::InferenceMode inference;
  const Tensor x = torch::ones({2, 64}, torch::dtype(torch::kBFloat16).device(torch::kMeta));
  Trace trace(kernels::kH200, nullptr);
  const Tensor y = torch::tanh(x).view({-1}).add(1);
  trace.stop();
  const Plan plan(trace, kernels::kH200, torch::kMeta, nullptr, {});
  ASSERT_EQ(plan.units().size(), 2U) << "a view launches nothing";
  for (const Plan::Line& line : plan.report()) {
    EXPECT_EQ(line.form, StageForm::none);
    EXPECT_THAT(line.why, HasSubstr("no lowering"));
  }
  EXPECT_EQ(plan.launches(), 2);
}

}  // namespace trace_test
}  // namespace based::decode
