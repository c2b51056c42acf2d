#include "based/mixers/kit/parameters.h"

#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "based/core/error.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/ops/framework/arguments.h"

namespace based {

void check_option(const char* mixer, const char* option, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  throw UsageError(std::string(mixer) + ": " + option + " must be " + std::to_string(low) + ".." + std::to_string(high) + ", got " +
                   std::to_string(value));
}

void check_number(const char* mixer, const char* option, double value, double minimum) {
  if (std::isfinite(value) && value >= minimum) return;
  std::ostringstream message;
  message << mixer << ": " << option << " must be a number";
  if (minimum > std::numeric_limits<double>::lowest()) message << " of at least " << minimum;
  message << ", got " << value;
  throw UsageError(message.str());
}

int64_t divided(const char* mixer, const char* name, int64_t value, const char* divisor_name, int64_t divisor, const char* advice) {
  if (value % divisor == 0) return value / divisor;
  throw UsageError(std::string(mixer) + ": " + name + " " + std::to_string(value) + " is not a multiple of " + divisor_name + " " +
                   std::to_string(divisor) + advice);
}

torch::TensorOptions sum_options(const Tensor& weight) { return state_options(weight).dtype(ops::sum_type(weight)); }
int64_t sum_bytes(const Tensor& weight) { return static_cast<int64_t>(torch::elementSize(ops::sum_type(weight))); }

Tensor initial_uniform(torch::IntArrayRef shape, double low, double high) {
  const Tensor values = torch::empty(shape, parameter_device());
  return SkipInitialisation::active() || ShapesOnly::active() ? values : values.uniform_(low, high);
}

Tensor initial_filter(torch::IntArrayRef shape, int64_t fan_in) {
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return initial_uniform(shape, -bound, bound);
}

std::shared_ptr<Projection> uniform_projection(int64_t in, int64_t out, bool bias, int64_t layers) {
  return std::make_shared<Projection>(initial_filter({out, in}, in * layers), bias ? torch::zeros({out}, parameter_device()) : Tensor());
}

ShortFilter::ShortFilter(int64_t channels, int64_t taps, bool bias) {
  weight_ = register_parameter("weight", initial_filter({channels, taps}, taps));
  if (bias) bias_ = register_parameter("bias", initial_filter({channels}, taps));
}

}  // namespace based
