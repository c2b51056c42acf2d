// Sparse attention of the recall experiments' code.
#include "based/models/golden/family.h"

namespace based::golden {
namespace {

ReferenceMixer nystromformer(const PeerMixer& peer) {
  const int64_t landmarks = required_int(peer.config, "num_landmarks", peer.parameters.path());
  if (landmarks < peer.length)
    return skipped("the reference's landmarks are means over segments of the whole text, masked by their index: tokens see the future");
  ReferenceMixer mixer{"nystromformer", {}, {}, ""};  // exact attention
  mixer.options = {{"landmarks", Config(landmarks)}, {"l_max", Config(landmarks)}};
  add_pair(mixer, "Wqkv", "qkv_proj");
  add_pair(mixer, "out_proj", "out_proj");
  return mixer;
}

ReferenceMixer bigbird(const PeerMixer& peer) {
  ReferenceMixer mixer{"bigbird", {}, {}, ""};
  const std::string& path = peer.parameters.path();
  mixer.options = {{"block_size", Config(field<int64_t>(peer.config, "block_size", 128, path))},
                   {"l_max", Config(peer.length)},
                   {"qkv_bias", Config(peer.parameters.has("Wqkv.bias"))}};
  add_pair(mixer, "Wqkv", "qkv_proj");
  add_pair(mixer, "out_proj", "out_proj");
  mixer.buffers = {{"mask", "open.value"}};  // drawn in the pass that the file contains
  return mixer;
}

std::optional<ReferenceMixer> sparse_attention_mixer(const PeerMixer& peer) {
  if (peer.name == "NystromAttention" || peer.name == "nystromformer") return nystromformer(peer);
  if (peer.name == "BigBIRDAttention" || peer.name == "bigbird") return bigbird(peer);
  if (peer.name == "SBLocalAttention" || peer.name == "scatterbrain")
    return skipped(
        "the reference adds a softmax over the window to an estimate of all, so that its weights sum to more than one, and scales features "
        "by "
        "a maximum over later tokens too; ours weighs window and estimate in one sum");
  return std::nullopt;
}

}  // namespace

BASED_GOLDEN_FAMILY_DEFINE(sparse_attention, {sparse_attention_mixer, nullptr})

}  // namespace based::golden
