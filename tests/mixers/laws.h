// The laws that every mixer must obey. Each law is a function that describes a violation. conformance_test.cpp checks them for all
// registered mixers; laws_test.cpp shows that each law detects faults.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "based/mixers/kit/mixer.h"
#include "based/runtime/torch.h"

namespace based::laws {

struct Subject {
  std::string name;
  int64_t d_model;
  std::string options;                           // as TOML; empty: the defaults
  std::function<std::shared_ptr<Mixer>()> make;  // with the mixer's initial weights, which the laws replace
  torch::Device device = torch::kCPU;            // the device under test; the double reference runs on the CPU
  bool recurrent = true;                         // false: it has only forward
};

// The name that gtest prints.
inline void PrintTo(const Subject& subject, std::ostream* to) { *to << subject.name; }

// The width and the options as flags of `based mixers`: "--d-model 33 --set heads=3".
std::string flags_of(const Subject& subject);

// Empty if the law holds, otherwise a description of the difference, its size and its place.
using Violation = std::string;

// Whether `law`, one of those below, holds. If not, the message names the options.
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
// At every length: forward == prefill in random splits == step by step (for lengths up to 2048) == the same weights in double.
Violation forms_agree(const Subject& subject, torch::Dtype dtype, const std::vector<int64_t>& lengths);
// Outputs before a position do not depend on inputs from there on.
Violation causal(const Subject& subject, torch::Dtype dtype);
// In step, a row's output and state are the same bit for bit alone and in batches of up to kBatchInvariantRows rows (on a GPU: in batches
// of the same size, since cuBLAS chooses its kernel by the shape). In prefill, and with one row more, they are the same within rounding.
Violation rows_independent(const Subject& subject, torch::Dtype dtype);
// A step of 1 to 8 tokens (kit/rounds.h) has the outputs and the state of as many steps of one token, bit for bit, and so has the state to
// which a sequence returns after its first tokens. On the CPU two sequences are stepped together, and one in always 8 rows. On a GPU it is
// one sequence in 8 rows, and steps of one token have 8 rows, too.
Violation rounds_equal_steps(const Subject& subject, torch::Dtype dtype);
// Rows in one packed call, including empty ones, have the same values and gradients as in separate calls.
Violation packed_equals_separate(const Subject& subject, torch::Dtype dtype);
// Inputs and output gradients that are not finite in some rows change no bit of other rows, in a packed call and its gradients. For
// recurrent mixers, the same holds in prefill and steps, and for a sequence that gets such a row's slot afterwards.
Violation rows_do_not_poison(const Subject& subject, torch::Dtype dtype);
// Two calls of prefill, the second from the state of the first, have the gradients of one forward.
Violation gradients_flow_through_state(const Subject& subject, torch::Dtype dtype);
// With gradients on, prefill does not change the state's old tensors, which a backward pass may need.
Violation state_is_replaced_under_gradients(const Subject& subject, torch::Dtype dtype);
// Zeroed, forked, extracted and inserted slots continue bit for bit. Slots are independent. A mixer keeps nothing outside the state.
Violation state_is_a_value(const Subject& subject, torch::Dtype dtype);
// state_bytes() equals the bytes of a state after that many tokens.
Violation state_bytes_are_real(const Subject& subject, torch::Dtype dtype);
// If the mixer has a formula, its value equals state_bytes().
Violation state_formula_is_exact(const Subject& subject, torch::Dtype dtype);
// Under ShapesOnly, parameters and the states of recurrent mixers take no memory, and have the same names, shapes and types as without it.
Violation sizes_are_known_without_memory(const Subject& subject, torch::Dtype dtype);
// A new mixer with the saved parameters gives the same outputs, bit for bit.
Violation parameters_survive_saving(const Subject& subject, torch::Dtype dtype);
// Step by step through `length` tokens: the error of the last thousand tokens is at most 1.5 times that of the first thousand.
Violation error_does_not_grow(const Subject& subject, torch::Dtype dtype, int64_t length);

// During its lifetime, memory from at::empty is filled with NaN (integers with the largest number).
class NanFill {
 public:
  NanFill();
  ~NanFill();
  NanFill(const NanFill&) = delete;
  NanFill& operator=(const NanFill&) = delete;
};

}  // namespace based::laws
