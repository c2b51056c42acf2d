#include "based/kernels/training/cross_entropy.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace cross_entropy_test {

void check_cross_entropy(int64_t rows, int64_t vocab, DType dtype, double spread) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << vocab << ", bf16 " << (dtype == DType::bf16) << ", spread " << spread);
  Reals values = random_reals(rows * vocab, 1, dtype);
  for (double& value : values) value = rounded(dtype, value * spread);
  const float scale = 0.25F;
  std::vector<int64_t> label;
  Reals loss, gradient(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    label.push_back(row == 0 ? vocab - 1 : (row * 7919) % vocab);
    const double* x = values.data() + row * vocab;
    const double most = *std::max_element(x, x + vocab);
    double sum = 0;
    for (int64_t w = 0; w < vocab; ++w) sum += std::exp(x[w] - most);
    loss.push_back(std::log(sum) + most - x[label.back()]);
    for (int64_t w = 0; w < vocab; ++w)
      gradient[static_cast<size_t>(row * vocab + w)] = (std::exp(x[w] - most) / sum - (w == label.back() ? 1 : 0)) * scale;
  }
  on_every_isa([&] {
    Buffer logits(dtype, values), found(DType::f32, rows), again(DType::f32, rows);
    const Buffer before = logits;
    CrossEntropy p;
    p.logits = logits.data(), p.label = label.data(), p.loss = found.floats();
    p.rows = rows, p.vocab = vocab, p.scale = scale, p.dtype = dtype;
    ASSERT_TRUE(cpu::cross_entropy(p).ok());
    EXPECT_TRUE(logits.same_bits(before)) << "logits changed where no gradient was asked for";
    expect_close(found.values(), loss, 1e-5, "loss");
    p.gradient = true, p.loss = again.floats();
    ASSERT_TRUE(cpu::cross_entropy(p).ok());
    EXPECT_TRUE(again.same_bits(found));
    expect_close(logits.values(), gradient, dtype == DType::f32 ? 1e-5 : 1e-2, "gradient");
    EXPECT_TRUE(logits.guards_intact() && found.guards_intact());
  });
}

TEST(CrossEntropy, AgreesWithDoubles) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t vocab : {1, 2, 15, 16, 17, 63, 64, 65, 1000, 8192})
      for (int64_t rows : {0, 1, 5}) check_cross_entropy(rows, vocab, dtype, 2);
  check_cross_entropy(3, 300, DType::f32, 1e4);  // the exponential of an unshifted logit would be infinite
}

TEST(CrossEntropy, NaNComesThrough) {
  on_every_isa([&] {
    std::vector<float> logits(100, 1.0F);
    logits[70] = NAN;
    const int64_t label = 3;
    float loss = 0;
    CrossEntropy p;
    p.logits = logits.data(), p.label = &label, p.loss = &loss, p.rows = 1, p.vocab = 100;
    ASSERT_TRUE(cpu::cross_entropy(p).ok());
    EXPECT_TRUE(std::isnan(loss));
  });
}

TEST(CrossEntropy, RefusesAGradientInFp16) {
  std::vector<float> logits(10), gradient(5);
  const int64_t label = 3;
  float loss = 0;
  CrossEntropy p;
  p.logits = logits.data(), p.half_gradient = gradient.data(), p.label = &label, p.loss = &loss, p.rows = 1, p.vocab = 10;
  EXPECT_STREQ(cpu::cross_entropy(p).what, "cross_entropy: only the CUDA kernel can write a gradient in fp16");
}

TEST(CrossEntropy, RefusesLabelsOutsideOfTheVocabulary) {
  std::vector<float> logits(10);
  float loss = 0;
  for (const int64_t label : {-1, 10}) {
    CrossEntropy p;
    p.logits = logits.data(), p.label = &label, p.loss = &loss, p.rows = 1, p.vocab = 10;
    EXPECT_STREQ(cpu::cross_entropy(p).what, "cross_entropy: a label is outside of the vocabulary");
  }
}

}  // namespace cross_entropy_test
}  // namespace based::kernels
