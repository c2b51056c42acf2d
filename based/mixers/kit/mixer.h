// The one interface of all sequence mixers. A mixer is one file, based/mixers/foo.cpp, and one line in mixers.def.
#pragma once
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "based/core/config.h"
#include "based/mixers/kit/formula.h"
#include "based/mixers/kit/pass.h"
#include "based/mixers/kit/state.h"
#include "based/runtime/torch.h"

namespace based {

// forward(x), prefill in any split, and step token by token give the same result. tests/mixers/conformance_test.cpp checks this and more
// for every registered mixer. x and the result are [tokens, d_model]; `pass` says which tokens belong to which sequence.
class Mixer : public torch::nn::Module {
 public:
  // Parallel form. Every row starts from a zero state. Differentiable. Activation checkpointing runs it twice, so dropout must draw from
  // pass.draws() and not from a generator.
  virtual Tensor forward(const Tensor& x, const Pass& pass) = 0;
  // Returns a zeroed state whose tensors keep their size and address, except those that grow. Accumulators are fp32 for every type of
  // activations, and fp64 for fp64 models.
  virtual MixerState make_state(int64_t slots) const = 0;
  // Parallel form that continues each row from its slot's state and updates that state. Differentiable with respect to x, the parameters
  // and the state: with gradients on, the state's tensors are replaced; with gradients off, they are written in place.
  virtual Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) = 0;
  // Recurrent form: one token for each of the pass's slots, x [rows, d_model]. Updates the state in place, without gradients. A row's
  // result does not depend on other rows, bit for bit. On the CPU this holds for up to ops::kBatchInvariantRows rows and for every number
  // of rows; on a GPU, among batches with the same number of rows.
  virtual Tensor step(const Tensor& x, MixerState& state, const Pass& pass) = 0;
  // Whether `step` also takes a pass of several rounds, Pass::step_rounds. It then gives the bits of a call for each round, but reads its
  // projections' weights once; step_in_rounds() of kit/rounds.h runs its recurrences. If not, the model calls it once for each round.
  virtual bool steps_in_rounds() const { return false; }
  // The bytes of one sequence's state after `tokens` tokens, as a formula in the mixer's options. Its value equals state_bytes(). None if
  // the mixer gives no formula.
  virtual Formula state_formula(int64_t /*tokens*/) const { return {}; }
  // Floating-point operations of one token's forward pass in the products that involve other tokens, on average over a row of `tokens`
  // tokens; a multiply-add counts as two. Products with the mixer's parameters and elementwise operations (gates, decays, norms,
  // activations) are not counted. A recurrence counts its update and its readout of the state, even where a kernel computes pairs of tokens
  // instead. None if the mixer does not say; training then reports no MFU.
  virtual std::optional<double> sequence_flops(int64_t /*tokens*/) const { return std::nullopt; }
};

// A mixer without a recurrent form. It has only `forward`; make_state, prefill and step throw Error.
class ParallelMixer : public Mixer {
 public:
  // The bytes that a decoder would have to store for one sequence of `tokens` tokens.
  virtual int64_t bytes_to_decode(int64_t tokens) const = 0;
  MixerState make_state(int64_t slots) const final;
  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) final;
  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) final;
};

// Arguments of a mixer's constructor besides its own options.
struct MixerContext {
  int64_t d_model = 0;
  int64_t layer = 0;   // index of the layer in the model
  int64_t layers = 1;  // number of layers in the model; output projections start from N(0, 0.02/√(2·layers))
};

struct MixerInfo {
  const char* name;
  const char* summary;                                                         // one line
  std::shared_ptr<Mixer> (*make)(const Config& options, const MixerContext&);  // throws UsageError for wrong options
  std::vector<FieldHelp> (*help)();                                            // its options
  bool recurrent = true;                                                       // false for a ParallelMixer
};

const std::deque<MixerInfo>& mixers();                 // all registered mixers: those of mixers.def in its order, then the others
const MixerInfo& find_mixer(const std::string& name);  // throws UsageError that suggests the nearest name

// Registers a mixer that an application defines, so that models may use it by name. The name consists of lower-case letters, digits and _,
// starts with a letter, and must be unique. Throws Error if the name is invalid or taken, or if a field is missing. Not thread-safe: call
// it before other threads construct models.
void register_mixer(const MixerInfo& info);

// The bytes of one slot of the tensors that make_state() returns, after `tokens` tokens (growing tensors depend on them). For a
// ParallelMixer, bytes_to_decode().
int64_t state_bytes(const Mixer& mixer, int64_t tokens);

}  // namespace based

// The last line of a mixer's file: BASED_DEFINE_MIXER(sliding_window, SlidingWindow, SlidingWindowConfig, "softmax attention over …")
// The class needs a constructor Class(const ConfigStruct&, const MixerContext&).
#define BASED_DEFINE_MIXER(name, Class, ConfigStruct, summary)                                                        \
  const ::based::MixerInfo& mixer_info_##name() {                                                                     \
    static const ::based::MixerInfo info{                                                                             \
        #name, summary,                                                                                               \
        [](const ::based::Config& options, const ::based::MixerContext& context) -> std::shared_ptr<::based::Mixer> { \
          return std::make_shared<Class>(::based::read_config<ConfigStruct>(options), context);                       \
        },                                                                                                            \
        [] { return ::based::config_help<ConfigStruct>(); }, !std::is_base_of_v<::based::ParallelMixer, Class>};      \
    return info;                                                                                                      \
  }
