#include "based/ops/pointwise/rowwise.h"

#include "tests/ops/framework/testing.h"

namespace based::ops {
namespace rowwise_test {

using namespace testing;
using std::vector;

struct Case {
  const char* name;
  Tensor (*row_wise)(const Tensor& x);
  Tensor (*plain)(const Tensor& x);  // in ATen
};

const vector<Case>& cases() {
  static const vector<Case> all = {
      {"silu", rowwise::silu, [](const Tensor& x) { return at::silu(x); }},
      {"sigmoid", rowwise::sigmoid, [](const Tensor& x) { return at::sigmoid(x); }},
      {"softplus", rowwise::softplus, [](const Tensor& x) { return at::log1p(at::exp(x)); }},
      {"exp", rowwise::exp, [](const Tensor& x) { return at::exp(x); }},
      {"elu_plus_one", rowwise::elu_plus_one, [](const Tensor& x) { return at::elu(x) + 1; }},
      {"log_sigmoid, scaled",
       [](const Tensor& x) { return rowwise::gate(x, kernels::Activation::log_sigmoid, {0.25}).to(x.scalar_type()); },
       [](const Tensor& x) { return -0.25 * at::log1p(at::exp(-x)); }},
      {"sum", rowwise::sum, [](const Tensor& x) { return x.sum(-1, true); }},
      {"l2_norm", [](const Tensor& x) { return rowwise::l2_norm(x, 1e-3); },
       [](const Tensor& x) { return x / (x.square().sum(-1, true) + 1e-3).sqrt(); }},
      {"rms_norm", [](const Tensor& x) { return rowwise::rms_norm(x, 1e-3); },
       [](const Tensor& x) { return x / (x.square().mean(-1, true) + 1e-3).sqrt(); }},
  };
  return all;
}

const vector<at::ScalarType> kTypes = {at::kFloat, at::kBFloat16, at::kDouble};

BASED_ON_EVERY_DEVICE(RowwiseOnDevices);

TEST_P(RowwiseOnDevices, RowsDoNotDependOnTheirNumber) {
  const at::NoGradGuard no_grad;
  for (const Case& c : cases())
    for (const at::ScalarType type : kTypes)
      for (const vector<int64_t>& row : {vector<int64_t>{1}, {7}, {33}, {3, 11}, {16, 16}, {1000}}) {
        vector<int64_t> sizes = row;
        sizes.insert(sizes.begin(), 65);
        const Tensor x = random(sizes, type, 3).to(GetParam()), all = c.row_wise(x);
        for (int64_t rows = 1; rows <= 65; ++rows)
          for (const int64_t first : {int64_t{0}, 65 - rows})
            ASSERT_TRUE(same_bits(c.row_wise(x.narrow(0, first, rows)), all.narrow(0, first, rows)))
                << c.name << " of " << type << sizes << ", " << rows << " rows from " << first;
      }
}

// One number a row is no row of numbers.
TEST_P(RowwiseOnDevices, SingleNumbersDoNotDependOnTheirNumber) {
  for (const Case& c : vector<Case>(cases().begin(), cases().begin() + 6))
    for (const at::ScalarType type : kTypes) {
      const Tensor x = random({65}, type, 3).to(GetParam()), all = c.row_wise(x);
      for (int64_t rows = 1; rows <= 65; ++rows)
        ASSERT_TRUE(same_bits(c.row_wise(x.narrow(0, 0, rows)), all.narrow(0, 0, rows))) << c.name << ", " << rows << " rows";
    }
}

TEST_P(RowwiseOnDevices, EqualsAten) {
  for (const Case& c : cases()) {
    const Function op = [&c](const vector<Tensor>& t) { return vector<Tensor>{c.row_wise(t[0])}; };
    const Function plain = [&c](const vector<Tensor>& t) { return vector<Tensor>{c.plain(t[0])}; };
    for (const at::ScalarType type : kTypes) {
      const double tolerance = type == at::kDouble ? 1e-13 : type == at::kFloat ? 2e-6 : 2e-2;
      // The gradient of a norm is a difference that may cancel in a row of few numbers, but not in all of many rows.
      for (const vector<int64_t>& sizes : {vector<int64_t>{0, 4}, {40, 2}, {5, 33}, {1, 33}, {3, 4, 7}}) {
        const vector<Tensor> inputs = {random(sizes, type, 2)}, exact = {inputs[0].to(at::kDouble)};
        const Tensor y = on_device(op, GetParam())(inputs)[0];
        EXPECT_EQ(y.scalar_type(), type) << c.name;
        EXPECT_TRUE(close(y, plain(exact)[0], tolerance)) << c.name << " of " << type << sizes;
        const vector<Tensor> cotangents = random_like({y});
        EXPECT_TRUE(close(gradients(on_device(op, GetParam()), inputs, cotangents)[0],
                          gradients(plain, exact, {cotangents[0].to(at::kDouble)})[0], tolerance))
            << "gradient of " << c.name << " of " << type << sizes;
      }
    }
    EXPECT_TRUE(gradcheck(op, {random({3, 5})})) << c.name;
    const Tensor wide = random({9, 5}, at::kFloat).to(GetParam());
    EXPECT_TRUE(same_bits(c.row_wise(wide.t()), c.row_wise(wide.t().contiguous()))) << c.name;
  }
}

// A gate has the type of sums, and nothing of it is rounded on the way.
TEST_P(RowwiseOnDevices, GatesAreInTheTypeOfSums) {
  const Function op = [](const vector<Tensor>& t) {
    return vector<Tensor>{rowwise::gate(t[0], kernels::Activation::softplus, {-1, t[1], t[2]})};
  };
  const Function plain = [](const vector<Tensor>& t) { return vector<Tensor>{-t[2].exp() * at::log1p(at::exp(t[0] + t[1]))}; };
  for (const at::ScalarType type : kTypes)
    for (const at::ScalarType factors : {type, type == at::kBFloat16 ? at::kFloat : type}) {
      const vector<Tensor> inputs = {random({5, 33}, type, 2), random({33}, factors), random({33}, factors)};
      const vector<Tensor> exact = {inputs[0].to(at::kDouble), inputs[1].to(at::kDouble), inputs[2].to(at::kDouble)};
      const Tensor y = on_device(op, GetParam())(inputs)[0];
      EXPECT_EQ(y.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
      EXPECT_TRUE(close(y, plain(exact)[0], 2e-6)) << type << ", " << factors;
      const vector<Tensor> cotangents = random_like({y}), grads = gradients(on_device(op, GetParam()), inputs, cotangents),
                           expected = gradients(plain, exact, {cotangents[0].to(at::kDouble)});
      for (size_t i = 0; i < inputs.size(); ++i)
        EXPECT_TRUE(close(grads[i], expected[i], inputs[i].scalar_type() == at::kBFloat16 ? 1e-2 : 2e-6)) << type << ", argument " << i;
      const Tensor wide = random({5, 40}, type).to(GetParam()), bias = inputs[1].to(GetParam());
      const rowwise::Gate gate{0.5, bias};
      EXPECT_TRUE(same_bits(rowwise::gate(wide.narrow(1, 3, 33), kernels::Activation::sigmoid, gate),
                            rowwise::gate(wide.narrow(1, 3, 33).contiguous(), kernels::Activation::sigmoid, gate)));
    }
  EXPECT_TRUE(gradcheck(op, {random({3, 5}), random({5}), random({5})}));
}

TEST(Rowwise, ErrorsNameArgumentAndValue) {
  EXPECT_EQ(error_of([] {
              rowwise::gate(at::zeros({2, 4}), kernels::Activation::exp, {1, at::zeros({3})});
            }),
            "rowwise_activation: bias must have shape [4], got [3]");
  EXPECT_EQ(error_of([] {
              rowwise::gate(at::zeros({2, 3, 4}), kernels::Activation::exp, {1, at::zeros({4})});
            }),
            "rowwise_activation: bias goes with x of [rows, width], got [2, 3, 4]");
  EXPECT_EQ(error_of([] { rowwise::exp(at::zeros({2}, at::kLong)); }), "rowwise_activation: x must be floating, got Long");
  EXPECT_EQ(error_of([] { rowwise::silu(at::zeros({})); }), "rowwise_activation: x must have rows, got a single number");
  EXPECT_EQ(error_of([] {
              rowwise::l2_norm(at::zeros({2, 0}), 1e-6);
            }),
            "rowwise norm: x must have a last dimension of at least 1, got [2, 0]");
}

std::vector<SchemaCase> schema_cases() {
  return {{"rowwise_activation", {small_random({5, 6}), int64_t{2}, 0.5, small_random({6}), small_random({6}), true}}};
}

const DefineSchemaCases kSchemaCases("rowwise", schema_cases);

}  // namespace rowwise_test
}  // namespace based::ops
