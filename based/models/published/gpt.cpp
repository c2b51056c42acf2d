#include "based/models/published/gpt.h"

#include <algorithm>
#include <string_view>

namespace based::published {
namespace {

// The hidden width of the MLP. The authors round it up to a multiple of 256, and those of their attention models were trained with 128; the
// file has one of both.
int64_t gated_width(ConfigReader& config, const SourceTensors& source, int64_t d_model) {
  const int64_t wanted = config.size("n_inner", std::max<int64_t>(8 * d_model / 3, 1));
  const auto rounded = [&](int64_t multiple) { return (wanted + multiple - 1) / multiple * multiple; };
  return source.rows("transformer.layers.0.mlp.fc1.weight") == 2 * rounded(128) ? rounded(128) : rounded(256);
}

void read_mlp(ConfigReader& config, const SourceTensors& source, ModelConfig& model) {
  config.require("mlp_type", "base", "this library has no MLP with three separate layers");
  const std::string activation = config.text("activation_function", "gelu_new");
  if (activation == "swiglu") {
    const char* const biases = "a gated MLP of this library has no biases";
    for (const char* key : {"mlp_fc1_bias", "mlp_fc2_bias"})
      if (config.boolean(key, true)) config.refuse(key, biases);
    model.mlp = "swiglu";
    model.mlp_width = gated_width(config, source, model.d_model);
  } else if (activation == "gelu") {
    for (const char* key : {"mlp_fc1_bias", "mlp_fc2_bias"})
      if (!config.boolean(key, true)) config.refuse(key, "a GELU MLP of this library has biases");
    model.mlp = "gelu";
    model.mlp_width = config.size("n_inner", 4 * model.d_model);
  } else {
    config.refuse("activation_function", "the MLPs of this library are swiglu and gelu");
  }
}

void refuse_other_forms(ConfigReader& config) {
  config.require("prenorm", true, "this library's norms precede the layers");
  config.require("parallel_block", false, "this library's mixer and MLP follow each other");
  config.require("lm_head_bias", false, "the head of this library is the embedding, without a bias");
  config.require("tie_word_embeddings", true, "the head of this library is the embedding");
  config.require("word_embed_proj_dim", nullptr, "this library does not project embeddings");
  config.require("attn_dwconv", false, "the attention of this library has no convolution");
  config.require("use_alibi", false, "the attention of this library has rotary positions or none");
  for (const char* key : {"mup_width_scale", "mup_embeddings_multiplier", "mup_output_multiplier", "mup_attn_multiplier"})
    config.require(key, 1.0, "this library has no such factor");
  config.require("mup_scale_qk_dot_by_d", false, "this library divides scores by the root of head_dim");
}

// Settings of training, of kernels, of generation and of transformers' classification heads, each followed by a space.
constexpr std::string_view kSettings =
    "resid_pdrop embd_pdrop attn_pdrop initializer_range special_initializer residual_in_fp32 use_flash_attn fused_dropout_add_ln "
    "fused_mlp fused_bias_fc fused_dense_sqrelu_dense sequence_parallel ff_mult mlp_checkpoint_lvl mlp_multiple_of summary_type "
    "summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels use_cache reorder_and_upcast_attn bos_token_id "
    "eos_token_id return_dict output_hidden_states output_attentions torchscript torch_dtype use_bfloat16 tf_legacy_loss pruned_heads "
    "is_encoder_decoder is_decoder cross_attention_hidden_size add_cross_attention tie_encoder_decoder max_length min_length "
    "do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty "
    "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences chunk_size_feed_forward "
    "output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id remove_invalid_values "
    "exponential_decay_length_penalty suppress_tokens begin_suppress_tokens architectures finetuning_task id2label label2id "
    "tokenizer_class prefix pad_token_id sep_token_id decoder_start_token_id task_specific_params problem_type _name_or_path "
    "transformers_version model_type l_max name _target_ _recursive_ ";

void ignore_settings(ConfigReader& config) {
  for (size_t begin = 0, end = 0; (end = kSettings.find(' ', begin)) != std::string_view::npos; begin = end + 1)
    config.ignore({std::string(kSettings.substr(begin, end - begin)).c_str()});
}

// The authors' released code computes a decay and does not use it: its buffer is in the file, and the outputs are the same without.
void read_decay(ConfigReader& config, Mapping& mapping) {
  const bool fixed = config.boolean("fixed_decay", false);
  config.ignore({"decay_const", "decay_denom"});
  if (!fixed) return;
  mapping.constants["transformer.decay.decay"] = {config.size("n_head")};
  mapping.warnings.push_back(
      "'fixed_decay' is true: the authors' released code stores the rates and does not use them, so neither does the model");
}

}  // namespace

Mapping map_gpt(ConfigReader& config, const SourceTensors& source, const MixerOfLayer& mixer_of_layer) {
  Mapping mapping;
  ModelConfig& model = mapping.config;
  model.d_model = config.size("n_embd");
  model.vocab_size = config.size("vocab_size");
  model.pad_vocab_multiple = config.size("pad_vocab_size_multiple", 1);
  model.norm = config.boolean("rms_norm", false) ? "rms_norm" : "layer_norm";
  model.norm_eps = config.number("layer_norm_epsilon", 1e-5);
  const std::string positions = "transformer.embeddings.position_embeddings.weight";
  model.max_positions = config.integer("n_positions", source.rows(positions));
  config.require("max_position_embeddings", model.max_positions, "'n_positions' says " + std::to_string(model.max_positions));
  read_mlp(config, source, model);
  refuse_other_forms(config);
  ignore_settings(config);
  read_decay(config, mapping);

  mapping.origins = {{"d_model", "n_embd"},
                     {"vocab_size", "vocab_size"},
                     {"pad_vocab_multiple", "pad_vocab_size_multiple"},
                     {"norm_eps", "layer_norm_epsilon"},
                     {"max_positions", "n_positions"},
                     {"mlp_width", config.has("n_inner") ? "n_inner" : "n_embd"}};

  mapping.embedding = "transformer.embeddings.word_embeddings.weight";
  mapping.head = "lm_head.weight";
  mapping.names.push_back({mapping.embedding, "embedding"});
  if (model.max_positions > 0) mapping.names.push_back({positions, "position_embedding"});
  const auto add_norm = [&](const std::string& theirs, const std::string& ours) {
    mapping.names.push_back({theirs + ".weight", ours + ".weight"});
    if (model.norm == "layer_norm") mapping.names.push_back({theirs + ".bias", ours + ".bias"});
  };
  for (int64_t layer = 0; layer < config.layers("n_layer"); ++layer) {
    const std::string ours = "layers." + std::to_string(layer) + ".", theirs = "transformer." + ours;
    mapping.add_layer(mixer_of_layer(layer, theirs + "mixer."), theirs + "mixer.", ours + "mixer.");
    add_norm(theirs + "norm1", ours + "norm1");
    add_norm(theirs + "norm2", ours + "norm2");
    for (const char* fc : {"mlp.fc1", "mlp.fc2"}) {
      mapping.names.push_back({theirs + fc + ".weight", ours + fc + ".weight"});
      if (model.mlp == "gelu") mapping.names.push_back({theirs + fc + ".bias", ours + fc + ".bias"});
    }
  }
  add_norm("transformer.ln_f", "norm");
  return mapping;
}

}  // namespace based::published
