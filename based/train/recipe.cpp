#include "based/train/recipe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "based/core/progress.h"
#include "based/core/text.h"
#include "based/mixers/kit/mixer.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/language_model.h"
#include "based/train/text_run_checks.h"

namespace based {
namespace {

using RecipeRows = std::vector<RecipeRow>;

// The shortest text that reads back as the same number; below 0.001 in the form 8e-5.
std::string short_number(double value) {
  std::array<char, 64> buffer{};
  const bool scientific = value != 0 && std::abs(value) < 1e-3;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                 scientific ? std::chars_format::scientific : std::chars_format::fixed)
                       .ptr;
  std::string text(buffer.data(), end);
  const size_t zero = text.find("e-0");
  return zero == std::string::npos ? text : text.erase(zero + 2, 1);
}

std::string four_decimals(double value) { return short_number(std::round(value * 1e4) / 1e4); }
std::string yes_or_no(bool value) { return value ? "True" : "False"; }
std::string percent(double share) { return short_number(std::round(share * 1e8) / 1e6) + "%"; }
std::string with_magnitude(int64_t count) { return std::to_string(count) + " (" + format_count(static_cast<double>(count)) + ")"; }

// The layers of a model that have the same name, and the options of their mixer with its defaults.
class LayerKind {
 public:
  LayerKind(const ModelConfig& config, const std::string& layer) : count(std::count(config.layers.begin(), config.layers.end(), layer)) {
    const auto found = config.mixers.find(layer);
    const Config given = found == config.mixers.end() ? Config(Config::Table{}) : found->second;
    type = found == config.mixers.end() ? layer : std::get<std::string>(given.find("type")->value());
    for (const FieldHelp& option : find_mixer(type).help()) {
      const Config* value = given.find(option.name);
      options_.push_back({option.name, value == nullptr ? option.default_value : text_of(*value)});
    }
  }

  int64_t count;
  std::string type;
  const RecipeRows& options() const { return options_; }

  std::string text(const std::string& option) const {
    for (const RecipeRow& row : options_)
      if (row.name == option) return row.value;
    throw Error("recipe: the mixer " + type + " has no option " + option);
  }
  double number(const std::string& option) const { return std::stod(text(option)); }
  std::string short_text(const std::string& option) const { return short_number(number(option)); }

 private:
  static std::string text_of(const Config& value) {
    const auto* text = std::get_if<std::string>(&value.value());
    return text == nullptr ? value.to_json(-1) : *text;
  }
  RecipeRows options_;
};

// One for each name of a layer, in the order of the first layer of each.
std::vector<LayerKind> layer_kinds(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const std::string& layer : config.layers)
    if (std::find(names.begin(), names.end(), layer) == names.end()) names.push_back(layer);
  std::vector<LayerKind> kinds;
  for (const std::string& name : names) kinds.emplace_back(config, name);
  return kinds;
}

std::string rotary_fraction(const LayerKind& kind, int64_t d_model) {
  const double head_dim = static_cast<double>(d_model) / kind.number("heads"), rotated = kind.number("rotary_dim");
  return rotated < 0 ? "1" : four_decimals(rotated / head_dim);
}

RecipeRows linear_rows(const LayerKind& kind) {
  return {{"Num. Linear Attn Layers", std::to_string(kind.count)},
          {"Num. Linear Attn Heads", kind.text("heads")},
          {"Taylor Feature Dimension", kind.text("feature_dim")},
          {"Linear Attn Positional Encodings", "None"},
          {"Linear Attn Decay", yes_or_no(kind.text("decay") == "true")}};
}

RecipeRows window_rows(const LayerKind& kind) {
  return {{"Num. Sliding Window Layers", std::to_string(kind.count)},
          {"Sliding Window Size", kind.text("window")},
          {"Sliding Window Heads", kind.text("heads")},
          {"Sliding Window Positional Encodings", kind.text("rotary_dim") == "0" ? "None" : "Rotary"}};
}

RecipeRows convolution_rows(const LayerKind& kind) {
  return {{"Num. BaseConv Layers", std::to_string(kind.count)},
          {"BaseConv Projection Expansion Factor", kind.text("expansion")},
          {"BaseConv Filter Size", kind.text("taps")},
          {"BaseConv Activation", "SiLU"}};
}

RecipeRows attention_rows(const LayerKind& kind, int64_t d_model) {
  return {{"Num Heads", kind.text("heads")}, {"Flash Attn", "True"}, {"Rotary Emb. Fraction", rotary_fraction(kind, d_model)}};
}

RecipeRows mamba_rows(const LayerKind& kind) {
  return {{"Dt State", kind.text("d_state")},
          {"Dt (Min, Max)", "(" + kind.short_text("dt_min") + ", " + kind.short_text("dt_max") + ")"},
          {"Dt Init. Strategy", "Random"},
          {"Dt Init. Floor", kind.short_text("dt_init_floor")},
          {"Dt Scale", "1.0"},
          {"Dt Softplus", "True"},
          {"Projection Expansion Factor", kind.text("expand")},
          {"Short Conv Filter Size", kind.text("d_conv")}};
}

RecipeRows hyena_rows(const LayerKind& kind) {
  return {{"Num Heads", "1"},
          {"Short Conv. Filter Size", kind.text("short_filter_order")},
          {"Exp. Mod. Decay (Fast, Slow)", kind.short_text("fast_decay") + ", " + kind.short_text("slow_decay")},
          {"Filter Sine Freq. (w)", kind.short_text("w")},
          {"Filter Order", kind.text("filter_order")},
          {"Filter Inner MLP", kind.text("num_inner_mlps")}};
}

// Mixers that are in none of the paper's tables show all their options.
RecipeRows option_rows(const LayerKind& kind) {
  RecipeRows rows{{"Num. " + kind.type + " Layers", std::to_string(kind.count)}};
  for (const RecipeRow& option : kind.options()) rows.push_back({kind.type + "." + option.name, option.value});
  return rows;
}

RecipeRows mixer_rows(const LayerKind& kind, int64_t d_model) {
  if (kind.type == "taylor_attention") return linear_rows(kind);
  if (kind.type == "sliding_window") return window_rows(kind);
  if (kind.type == "gated_conv") return convolution_rows(kind);
  if (kind.type == "attention") return attention_rows(kind, d_model);
  if (kind.type == "mamba") return mamba_rows(kind);
  if (kind.type == "hyena") return hyena_rows(kind);
  if (kind.type == "h3") return {{"Num Heads", short_number(static_cast<double>(d_model) / kind.number("head_dim"))}};
  if (kind.type == "gla") return {{"Num Heads", kind.text("heads")}};
  if (kind.type == "rwkv5") return {{"Num Heads", short_number(static_cast<double>(d_model) / kind.number("head_size"))}};
  if (kind.type == "rwkv5_channel_mix") return {};  // in the rows of the MLP
  return option_rows(kind);
}

// Rows of a second mixer that have the name of an earlier row are prefixed by the mixer, so that names are unique.
RecipeRows all_mixer_rows(const ModelConfig& config, const std::vector<LayerKind>& kinds) {
  RecipeRows all;
  for (const LayerKind& kind : kinds) {
    for (RecipeRow& row : mixer_rows(kind, config.d_model)) {
      const bool taken = std::any_of(all.begin(), all.end(), [&](const RecipeRow& other) { return other.name == row.name; });
      if (taken) row.name = kind.type + ": " + row.name;
      all.push_back(std::move(row));
    }
  }
  return all;
}

// RWKV's MLP is a layer of its own, so its layers count as halves.
RecipeRows model_rows(const ModelConfig& config, const std::vector<LayerKind>& kinds) {
  const auto mix = std::find_if(kinds.begin(), kinds.end(), [](const LayerKind& kind) { return kind.type == "rwkv5_channel_mix"; });
  const auto layers = static_cast<int64_t>(config.layers.size()) - (mix == kinds.end() ? 0 : mix->count);
  const auto d_model = static_cast<double>(config.d_model);
  RecipeRows rows{{"Num Layers", std::to_string(layers)},
                  {"Hidden Size", std::to_string(config.d_model)},
                  {"RMSNorm", yes_or_no(config.norm == "rms_norm")},
                  {"Norm Epsilon", short_number(config.norm_eps)}};
  if (config.mlp == "swiglu" || config.mlp == "gelu") {
    rows.push_back({"MLP Activation", config.mlp == "swiglu" ? "SwiGLU" : "GELU"});
    rows.push_back({"MLP Width", four_decimals(static_cast<double>(config.mlp_width) / d_model)});
    rows.push_back({"MLP Bias", yes_or_no(config.mlp == "gelu")});
  } else if (mix != kinds.end()) {
    const double width = mix->number("width");
    rows.push_back({"MLP Activation", "ReLU^2 (channel mix)"});
    rows.push_back({"MLP Width", four_decimals(width == 0 ? std::max(1.0, std::floor(d_model * 7 / 64)) * 32 / d_model : width / d_model)});
  }
  return rows;
}

RecipeRows optimizer_rows(const TextRun& run) {
  const OptimizerOptions& optimizer = run.optimizer;
  return {{"Optimizer", "Adam (AdamW: decoupled weight decay)"},
          {"Optimizer momentum", short_number(optimizer.beta1) + ", " + short_number(optimizer.beta2)},
          {"Optimizer eps", short_number(optimizer.eps)},
          {"Precision", run.train.precision == "bf16" ? "BFloat16 (fp32 masters)" : "Float32"}};
}

RecipeRows schedule_rows(const TextRun& run) {
  const OptimizerOptions& optimizer = run.optimizer;
  RecipeRows rows{{"Warmup", percent(optimizer.warmup)},
                  {"Learning rate decay", optimizer.schedule == "step" ? "Cosine" : "Cosine (a step each epoch)"},
                  {"Learning rate (min, base)", short_number(optimizer.min_learning_rate) + ", " + short_number(optimizer.learning_rate)},
                  {"Global batch size", std::to_string(run.train.batch)},
                  {"Weight decay", short_number(optimizer.weight_decay)},
                  {"Weight decay acts on", optimizer.decay_all ? "all parameters" : "parameters of two or more dimensions"}};
  for (const OptimizerGroup& group : optimizer.groups) {
    std::string value;
    if (group.weight_decay >= 0) value = "weight decay " + short_number(group.weight_decay);
    if (group.learning_rate_scale != 1)
      value += (value.empty() ? "" : ", ") + ("learning rate " + short_number(optimizer.learning_rate * group.learning_rate_scale));
    rows.push_back({"Except " + group.pattern, value.empty() ? "as above" : value});
  }
  rows.push_back({"Gradient clipping (norm)", optimizer.clip == 0 ? "None" : short_number(optimizer.clip)});
  return rows;
}

std::string dropout_text(const ModelConfig& config, const std::vector<LayerKind>& kinds) {
  std::string text = config.embedding_dropout == 0 ? "" : "embedding " + short_number(config.embedding_dropout);
  for (const LayerKind& kind : kinds)
    for (const RecipeRow& option : kind.options())
      if (option.name == "dropout" && kind.number("dropout") != 0)
        text += (text.empty() ? "" : ", ") + kind.type + " " + kind.short_text("dropout");
  return text.empty() ? "0" : text;
}

RecipeRows run_rows(const TextRun& run, const ModelConfig& config, const std::vector<LayerKind>& kinds, const Recipe& recipe) {
  return {{"Parameters", with_magnitude(recipe.parameters)},
          {"Vocabulary", std::to_string(config.vocab_size) + " (" + std::to_string(config.padded_vocab()) + " rows)"},
          {"Dropout", dropout_text(config, kinds)},
          {"Sequence length", std::to_string(run.train.length)},
          {"Document boundaries", run.data.documents ? "kept" : "ignored"},
          {"Steps (warmup)", std::to_string(recipe.steps) + " (" + std::to_string(recipe.warmup_steps) + ")"},
          {"Tokens per step", std::to_string(recipe.tokens_per_step)},
          {"Tokens", with_magnitude(recipe.tokens)},
          {"Micro-batches per step and device", std::to_string(run.train.accumulate)}};
}

// Throws UsageError for a group without parameters. The optimizer's state has no memory, like the model's parameters.
void check_groups(const ModelConfig& config, const OptimizerOptions& options) {
  const ShapesOnly no_memory;
  const AdamW checked(LanguageModel(config), options);
}

}  // namespace

Recipe make_recipe(const TextRun& run) {
  const ModelConfig config = read_model_config(checked_model_keys(run, run.train.start));
  check_run(run, /*ranks=*/1);
  check_groups(config, run.optimizer);
  const std::vector<LayerKind> kinds = layer_kinds(config);
  Recipe recipe;
  recipe.parameters = parameter_count(config);
  recipe.steps = run.train.steps;
  recipe.warmup_steps = std::lround(run.optimizer.warmup * static_cast<double>(run.train.steps));
  recipe.tokens_per_step = run.train.batch * run.train.length;
  recipe.tokens = recipe.tokens_per_step * recipe.steps;
  recipe.sections = {optimizer_rows(run), schedule_rows(run), model_rows(config, kinds), all_mixer_rows(config, kinds),
                     run_rows(run, config, kinds, recipe)};
  return recipe;
}

std::string recipe_text(const Recipe& recipe) {
  size_t width = 0;
  for (const RecipeRows& section : recipe.sections)
    for (const RecipeRow& row : section) width = std::max(width, row.name.size());
  std::string text;
  for (const RecipeRows& section : recipe.sections) {
    if (!text.empty() && !section.empty()) text += "\n";
    for (const RecipeRow& row : section) text += padded(row.name, width + 2) + row.value + "\n";
  }
  return text;
}

Json recipe_json(const Recipe& recipe) {
  Json settings = Json::object();
  for (const RecipeRows& section : recipe.sections)
    for (const RecipeRow& row : section) settings[row.name] = row.value;
  return {{"settings", settings},
          {"parameters", recipe.parameters},
          {"steps", recipe.steps},
          {"warmup_steps", recipe.warmup_steps},
          {"tokens_per_step", recipe.tokens_per_step},
          {"tokens", recipe.tokens}};
}

}  // namespace based
