#include "based/kernels/training/dropout.h"

#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace dropout_test {

TEST(Dropout, FollowsTheFormula) {
  const int64_t step = 41;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t count : {0, 1, 15, 16, 17, 1000, 100000}) {
      Buffer x(dtype, random_reals(count, 1, dtype));
      const uint64_t key = dropout_key(9, 41, 3);
      Reals expected;
      for (int64_t i = 0; i < count; ++i)
        expected.push_back(is_dropped(key, static_cast<uint64_t>(i), dropout_threshold(0.2)) ? 0 : rounded(dtype, x[i] * 1.25));
      const Buffer wanted(dtype, expected);
      on_every_isa([&] {
        Buffer y(dtype, count);
        ASSERT_TRUE(cpu::dropout({x.data(), y.data(), &step, count, 9, 3, dropout_threshold(0.2), 1.25F, dtype}).ok());
        EXPECT_TRUE(y.same_bits(wanted)) << count << " numbers, bf16 " << (dtype == DType::bf16);
        Buffer in_place = x;
        ASSERT_TRUE(cpu::dropout({in_place.data(), in_place.data(), &step, count, 9, 3, dropout_threshold(0.2), 1.25F, dtype}).ok());
        EXPECT_TRUE(in_place.same_bits(wanted));
      });
    }
}

TEST(Dropout, RefusesWrongArguments) {
  float x = 0;
  const int64_t step = 0;
  EXPECT_FALSE(cpu::dropout({&x, &x, &step, -1}).ok());
  EXPECT_FALSE(cpu::dropout({&x, &x, nullptr, 1}).ok());
  EXPECT_FALSE(cpu::dropout({nullptr, &x, &step, 1}).ok());
  EXPECT_TRUE(cpu::dropout({nullptr, nullptr, nullptr, 0}).ok());
}

}  // namespace dropout_test
}  // namespace based::kernels
