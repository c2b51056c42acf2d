// Softmax attention over the most recent tokens (paper, section 4.2): exact local recall from a ring buffer of fixed size.
#include "based/mixers/softmax_attention.h"

namespace based {
namespace {

struct SlidingWindowConfig : SoftmaxAttentionConfig {
  int64_t window = 64;
  template <class Visitor>
  void visit(Visitor&& field) {
    field("window", window, "keys that a token attends to, itself included");
    SoftmaxAttentionConfig::visit(field);
  }
};

int64_t checked_window(int64_t window) {
  check_option("sliding_window", "window", window, 1, int64_t{1} << 20);
  return window;
}

class SlidingWindow final : public SoftmaxAttention {
 public:
  SlidingWindow(const SlidingWindowConfig& config, const MixerContext& context)
      : SoftmaxAttention("sliding_window", config, checked_window(config.window), context) {}
};

}  // namespace

BASED_DEFINE_MIXER(sliding_window, SlidingWindow, SlidingWindowConfig,
                   "softmax attention over the most recent tokens, from a ring buffer of fixed size")

}  // namespace based
