#include "based/mixers/kit/mixer.h"

#include <algorithm>
#include <string_view>

#include "based/core/error.h"
#include "based/mixers/kit/registry.h"
#include "based/mixers/kit/shapes_only.h"

namespace based {

// The table is explicit. Each entry calls into its mixer's file, so that the linker keeps the file. The linker would drop a file that
// registers itself in a static initialiser.
#define BASED_MIXER(name) const MixerInfo& mixer_info_##name();
#include "based/mixers/mixers.def"
#undef BASED_MIXER

namespace {

// A deque: references to its elements stay valid when register_mixer() adds others.
std::deque<MixerInfo>& table() {
  static std::deque<MixerInfo> all = {
#define BASED_MIXER(name) mixer_info_##name(),
#include "based/mixers/mixers.def"
#undef BASED_MIXER
  };
  return all;
}

// Names are keys of configuration files and parts of test names.
bool is_name(std::string_view text) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !text.empty() && text[0] >= 'a' && text[0] <= 'z' && std::all_of(text.begin(), text.end(), plain);
}

[[noreturn]] void refuse_state() {
  throw Error("a mixer without a recurrent form keeps no state: it cannot continue a sequence, or be decoded from");
}

}  // namespace

MixerState ParallelMixer::make_state(int64_t /*slots*/) const { refuse_state(); }
Tensor ParallelMixer::prefill(const Tensor& /*x*/, MixerState& /*state*/, const Pass& /*pass*/) { refuse_state(); }
Tensor ParallelMixer::step(const Tensor& /*x*/, MixerState& /*state*/, const Pass& /*pass*/) { refuse_state(); }

const std::deque<MixerInfo>& mixers() { return table(); }

void register_mixer(const MixerInfo& info) {
  const std::string name = info.name == nullptr ? "" : info.name;
  if (!is_name(name)) throw Error("register_mixer: a name is lower-case letters, digits and _, a letter first, got '" + name + "'");
  for (const MixerInfo& known : table())
    if (name == known.name) throw Error("register_mixer: there is a mixer '" + name + "' already; choose another name");
  if (info.summary == nullptr || info.make == nullptr || info.help == nullptr)
    throw Error("register_mixer: '" + name + "' must have summary, make and help; BASED_DEFINE_MIXER gives all of them");
  table().push_back(info);
}

const MixerInfo& find_mixer(const std::string& name) { return find_named(mixers(), "mixer", name); }

int64_t state_bytes(const Mixer& mixer, int64_t tokens) {
  if (const auto* parallel = dynamic_cast<const ParallelMixer*>(&mixer)) return parallel->bytes_to_decode(tokens);
  const ShapesOnly no_memory;
  const MixerState one = mixer.make_state(1);
  int64_t sum = 0;
  for (const StateTensor& tensor : one.tensors()) {
    int64_t bytes = static_cast<int64_t>(tensor.value.element_size());
    for (int64_t d = 0; d < tensor.value.dim(); ++d) {
      const int64_t size = tensor.grows && d == 1 ? std::max(tokens, tensor.value.size(1)) : tensor.value.size(d);
      if (__builtin_mul_overflow(bytes, size, &bytes))
        throw Error("state: the bytes of '" + tensor.name + "' after " + std::to_string(tokens) + " tokens do not fit into 63 bits");
    }
    sum += bytes;
  }
  return sum;
}

}  // namespace based
