#include "based/mixers/mixer.h"

#include "based/core/error.h"

namespace based {

// The table is explicit, and each entry calls into its mixer's file: the linker cannot drop a file that registers itself.
#define BASED_MIXER(name) const MixerInfo& mixer_info_##name();
#include "based/mixers/mixers.def"
#undef BASED_MIXER

const std::vector<MixerInfo>& mixers() {
  static const std::vector<MixerInfo> table = {
#define BASED_MIXER(name) mixer_info_##name(),
#include "based/mixers/mixers.def"
#undef BASED_MIXER
  };
  return table;
}

const MixerInfo& find_mixer(const std::string& name) {
  std::vector<std::string> names;
  for (const MixerInfo& info : mixers()) {
    if (name == info.name) return info;
    names.emplace_back(info.name);
  }
  const std::string guess = nearest(name, names);
  throw UsageError("unknown mixer '" + name + "'" +
                   (guess.empty() ? "; `based mixers` lists the known ones" : ", did you mean '" + guess + "'?"));
}

int64_t state_bytes(const Mixer& mixer, int64_t tokens) {
  MixerState state = mixer.make_state(1);
  state.grow(tokens);
  return state.bytes();
}

}  // namespace based
