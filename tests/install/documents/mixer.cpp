// docs/guides/mixer.md: the parts of a mixer and of a feature map, with the least that they need around them.
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/feature_map.h"
#include "based/mixers/kit/parameters.h"

namespace based {

#include "docs/guides/mixer.md.1"

class MyMixer final : public Mixer {
 public:
  MyMixer(const MyMixerConfig&, const MixerContext& context) : width_(context.d_model) {}
  MixerState make_state(int64_t slots) const override { return MixerState({{"sum", torch::zeros({slots, width_})}}); }

#include "docs/guides/mixer.md.2"

 private:
  int64_t width_ = 0;
};

std::pair<Tensor, Tensor> MyMixer::run(const Tensor& x, const Sequences&, const Tensor& initial) const { return {x, initial}; }

BASED_DEFINE_MIXER(my_mixer, MyMixer, MyMixerConfig, "one line that based mixers prints")

struct FooOptions : ScaleOptions {};

#include "docs/guides/mixer.md.3"

Tensor Foo::forward(const Tensor& x, const Pass&) const { return torch::cat({options_.scaled(x), x}, -1); }

}  // namespace based
