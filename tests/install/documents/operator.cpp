// docs/guides/operator.md: the operator foo at rungs 1 and 2, with the functions that the page names and leaves to the reader.
#define BASED_ISA portable
#include "based/ops/framework/operator.h"
#include "based/kernels/common/cpu/isa.h"
#include "based/kernels/common/cpu/parallel.h"
#include "based/kernels/common/cpu/vec.h"
#include "based/kernels/common/launchers.h"
#include "based/ops/framework/on_device.h"
#include "based/ops/framework/operator_gradient.h"
#include "tests/ops/framework/testing.h"

namespace based::ops::rung_1 {

#include "docs/guides/operator.md.1"
#include "docs/guides/operator.md.2"

namespace {
using namespace testing;
#include "docs/guides/operator.md.3"
}  // namespace

}  // namespace based::ops::rung_1

namespace based::kernels {

#include "docs/guides/operator.md.4"

namespace cpu {

#include "docs/guides/operator.md.6"

#include "docs/guides/operator.md.5"

namespace BASED_ISA {

#include "docs/guides/operator.md.7"

template <class T>
void foo(const Foo&, int64_t, int64_t) {}

}  // namespace BASED_ISA

#ifdef __x86_64__  // BASED_DISPATCH names the function of each instruction set
namespace avx2 {
void foo_rows(const Foo& p, int64_t begin, int64_t end) { portable::foo_rows(p, begin, end); }
}  // namespace avx2
namespace avx512 {
void foo_rows(const Foo& p, int64_t begin, int64_t end) { portable::foo_rows(p, begin, end); }
}  // namespace avx512
namespace avx512bf16 {
void foo_rows(const Foo& p, int64_t begin, int64_t end) { portable::foo_rows(p, begin, end); }
}  // namespace avx512bf16
#endif
}  // namespace cpu
}  // namespace based::kernels

namespace based::ops::rung_2 {

#include "docs/guides/operator.md.1"

struct FooBackward {
  const Tensor& grad_y;
  const Tensor& x;
  const OptionalTensor& bias;
  double eps;
  BASED_OPERATOR("foo_backward -> grad_x, grad_bias", grad_y, x, bias, eps)
};

Tensor reference(const Foo& in) { return in.x; }
Tensor forward_meta(const Foo& in) { return at::empty_like(in.x); }
Result<FooBackward> backward_reference(const FooBackward& in) { return {in.grad_y, Tensor()}; }
Result<FooBackward> backward_meta(const FooBackward& in) { return {in.grad_y, Tensor()}; }
Result<FooBackward> backward(const FooBackward& in) { return {in.grad_y, Tensor()}; }

#include "docs/guides/operator.md.8"

}  // namespace based::ops::rung_2
