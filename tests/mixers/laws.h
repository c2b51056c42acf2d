// What must hold for every mixer, each law as a function that tells what is violated. conformance_test.cpp runs them over the registry;
// laws_test.cpp shows on a mixer with one fault at a time that each of them can fail.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "based/mixers/mixer.h"
#include "based/ops/torch.h"

namespace based::laws {

struct Subject {
  std::string name;
  int64_t d_model;
  std::string options;                           // as TOML; none: the defaults
  std::function<std::shared_ptr<Mixer>()> make;  // with weights of its own drawing; the laws draw others
  torch::Device device = torch::kCPU;            // where it is tested; the double reference runs on the CPU
  bool recurrent = true;                         // false: forward is its only form
};

// How gtest names it.
inline void PrintTo(const Subject& subject, std::ostream* to) { *to << subject.name; }

// The width and the options as `based mixers` takes them: "--d-model 33 --set heads=3".
std::string flags_of(const Subject& subject);

// Empty where the law holds; else what differs, by how much and where.
using Violation = std::string;

// Whether `law`, one of those below, holds; if not, the message says for which options.
template <class... More>
testing::AssertionResult obeys(Violation (*law)(const Subject&, torch::Dtype, More...), const Subject& subject, torch::Dtype dtype,
                               const std::type_identity_t<More>&... more) {
  const Violation violation = law(subject, dtype, more...);
  if (violation.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << violation << "\n  of " << subject.name << ": " << flags_of(subject) << "; " << dtype << " on "
                                     << subject.device;
}

// At every length: forward == the same weights in double.
Violation forward_is_exact(const Subject& subject, torch::Dtype dtype, const std::vector<int64_t>& lengths);
// At every length: forward == prefill in random splits == (up to 2048 tokens at once) step by step == the same weights in double.
Violation forms_agree(const Subject& subject, torch::Dtype dtype, const std::vector<int64_t>& lengths);
// Outputs before a position do not depend on inputs from there on.
Violation causal(const Subject& subject, torch::Dtype dtype);
// In step a row's output and state are the same, bit for bit, alone and among any others, up to kBatchInvariantRows together (on a GPU:
// among any others of the same number, since cuBLAS picks its kernel by the shape); within rounding in prefill and in one row more.
Violation rows_independent(const Subject& subject, torch::Dtype dtype);
// Rows in one packed call, among them empty ones, give the values and gradients that they give one by one.
Violation packed_equals_separate(const Subject& subject, torch::Dtype dtype);
// What is not finite in some rows, inputs and the gradients of their outputs, changes no bit of the others: not in one packed call and its
// gradients, and where it is recurrent not in prefill and not in steps, nor of a text that gets its slot afterwards.
Violation rows_do_not_poison(const Subject& subject, torch::Dtype dtype);
// Two calls of prefill, the state of the first into the second, give the gradients of one forward.
Violation gradients_flow_through_state(const Subject& subject, torch::Dtype dtype);
// Where gradients are on, prefill leaves the state's old tensors as they were: a backward may need them.
Violation state_is_replaced_under_gradients(const Subject& subject, torch::Dtype dtype);
// Zeroed, forked, extracted and inserted slots continue bit for bit; a slot is its own; nothing is kept outside the state.
Violation state_is_a_value(const Subject& subject, torch::Dtype dtype);
// state_bytes is what a state takes after that many tokens.
Violation state_bytes_are_real(const Subject& subject, torch::Dtype dtype);
// Where the mixer gives a formula, its value is state_bytes.
Violation state_formula_is_exact(const Subject& subject, torch::Dtype dtype);
// Under ShapesOnly parameters and, where it is recurrent, states take no memory, and have the names, shapes and types that they have
// without it.
Violation sizes_are_known_without_memory(const Subject& subject, torch::Dtype dtype);
// A new mixer with the saved parameters gives the same outputs, bit for bit.
Violation parameters_survive_saving(const Subject& subject, torch::Dtype dtype);
// Step by step through `length` tokens: the error of the last thousand is not above that of the first thousand.
Violation error_does_not_grow(const Subject& subject, torch::Dtype dtype, int64_t length);

// While one lives, memory that at::empty hands out is filled with NaN (and with the largest number for integers).
class NanFill {
 public:
  NanFill();
  ~NanFill();
  NanFill(const NanFill&) = delete;
  NanFill& operator=(const NanFill&) = delete;
};

}  // namespace based::laws
