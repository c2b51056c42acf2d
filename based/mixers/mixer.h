// The one interface of all sequence mixers. A mixer is one file, based/mixers/foo.cpp, and one line in mixers.def.
#pragma once
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "based/core/config.h"
#include "based/mixers/formula.h"
#include "based/mixers/pass.h"
#include "based/mixers/state.h"
#include "based/ops/torch.h"

namespace based {

// forward(x), prefill in any split and step token by token give the same answer; tests/mixers/conformance_test.cpp checks this and more
// for every registered mixer. x and the result are [tokens, d_model]; whose tokens they are, `pass` says.
class Mixer : public torch::nn::Module {
 public:
  // Parallel form, every row from a zero state; differentiable. Runs twice where activations are checkpointed, so what it drops in training
  // mode it draws from pass.draws(), not from a generator.
  virtual Tensor forward(const Tensor& x, const Pass& pass) = 0;
  // Zeroed, of fixed size and address (growing states excepted). Accumulators are fp32 whatever the activations' type, fp64 in fp64.
  virtual MixerState make_state(int64_t slots) const = 0;
  // Parallel form that continues each row from its slot's state and leaves the state after the row there. Differentiable with respect to
  // x, the parameters and the state: where gradients are on, the state's tensors are replaced, not written in place.
  virtual Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) = 0;
  // One token for each of the pass's slots: x is [rows, d_model]. In place, no gradients. A row's result depends on no other row, bit for
  // bit, among up to ops::kBatchInvariantRows on the CPU, and not on their number; on a GPU, among rows of the same number.
  virtual Tensor step(const Tensor& x, MixerState& state, const Pass& pass) = 0;
  // The bytes of one sequence's state after so many tokens (of a ParallelMixer, of what decoding would keep) by its options: what
  // state_bytes() finds in its tensors. None: the mixer gives none.
  virtual Formula state_formula(int64_t /*tokens*/) const { return {}; }
};

// A mixer without a recurrent form: `forward` is all that it has, the others throw Error.
class ParallelMixer : public Mixer {
 public:
  // What a decoder would have to keep of one sequence of `tokens` tokens.
  virtual int64_t bytes_to_decode(int64_t tokens) const = 0;
  MixerState make_state(int64_t slots) const final;
  Tensor prefill(const Tensor& x, MixerState& state, const Pass& pass) final;
  Tensor step(const Tensor& x, MixerState& state, const Pass& pass) final;
};

// What a maker is told besides the mixer's own options.
struct MixerContext {
  int64_t d_model = 0;
  int64_t layer = 0;   // index in the model, for messages
  int64_t layers = 1;  // of the model, for the scale of initial output projections: N(0, 0.02/√(2·layers))
};

struct MixerInfo {
  const char* name;
  const char* summary;                                                         // one line
  std::shared_ptr<Mixer> (*make)(const Config& options, const MixerContext&);  // throws UsageError for wrong options
  std::vector<FieldHelp> (*help)();                                            // its options
  bool recurrent = true;                                                       // false: a ParallelMixer
};

const std::deque<MixerInfo>& mixers();                 // every registered mixer: those of mixers.def in its order, then others
const MixerInfo& find_mixer(const std::string& name);  // throws UsageError naming the nearest

// For a program with a mixer of its own: from here on it is one of mixers(), and models may name it. Its name is lower-case letters, digits
// and _, a letter first, and no other mixer's; else, or where something is missing, throws Error. Called before other threads make models.
void register_mixer(const MixerInfo& info);

// Bytes of one slot of the state that really runs, after `tokens` tokens (which matters where it grows); of a ParallelMixer,
// bytes_to_decode.
int64_t state_bytes(const Mixer& mixer, int64_t tokens);

}  // namespace based

// Ends a mixer's file: BASED_DEFINE_MIXER(sliding_window, SlidingWindow, SlidingWindowConfig, "softmax attention over …")
// The class is constructed as Class(const ConfigStruct&, const MixerContext&).
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
