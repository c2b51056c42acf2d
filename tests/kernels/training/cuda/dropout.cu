#include "based/kernels/training/dropout.h"
#include "tests/kernels/common/cuda/testing.cuh"

namespace based::tests {
namespace {

using kernels::DType;
namespace gpu = kernels::cuda;

void verify_dropout(Report& report, int64_t count, DType dtype) {
  const double p = 0.2;
  const Buffer x = random_buffer(count, dtype, 2, 1), step = upload({12345678901});
  Buffer y(count * kernels::dtype_size(dtype));
  check(gpu::dropout({x.as(), y.as(), step.as<int64_t>(), count, -7, 3, kernels::dropout_threshold(p), 1.25F, dtype}, {}));
  std::vector<double> expected = download(x.as(), dtype, count);
  const uint64_t key = kernels::dropout_key(static_cast<uint64_t>(-7), 12345678901, 3);
  for (int64_t i = 0; i < count; ++i)
    expected[i] *= kernels::is_dropped(key, static_cast<uint64_t>(i), kernels::dropout_threshold(p)) ? 0 : 1.25;
  report.expect("dropout " + std::to_string(count) + type_name(dtype), relative_error(download(y.as(), dtype, count), expected),
                allowed(dtype));
}

void verify_dropout(Report& report) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t count : {5, 333, 4096, 65536}) verify_dropout(report, count, dtype);
}

const DefineFamily<Report> kDropout("dropout", verify_dropout);

}  // namespace
}  // namespace based::tests
