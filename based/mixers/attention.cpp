// Full causal softmax attention: exact recall of the whole sequence, from a cache that grows with it.
#include "based/mixers/softmax_attention.h"

namespace based {
namespace {

class Attention final : public SoftmaxAttention {
 public:
  Attention(const SoftmaxAttentionConfig& config, const MixerContext& context)
      : SoftmaxAttention("attention", config, /*window=*/0, context) {}
};

}  // namespace

BASED_DEFINE_MIXER(attention, Attention, SoftmaxAttentionConfig, "full causal softmax attention, with a cache that grows")

}  // namespace based
