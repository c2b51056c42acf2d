#include <filesystem>

#include "apps/command.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/core/safetensors.h"
#include "based/mixers/shapes_only.h"
#include "based/models/language_model.h"

namespace based::apps {
namespace {

struct Options {
  std::string path;
  bool json = false;
};

Json tensor_json(const TensorView& tensor) {
  Json json{{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}};
  if (const auto at = first_not_finite(tensor)) json["first_not_finite"] = *at;
  return json;
}

void show_tensors(const SafetensorsFile& file, bool json) {
  Json list = Json::array();
  int64_t bytes = 0;
  for (const auto& tensor : file.tensors()) {
    list.push_back(tensor_json(tensor));
    bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  if (json) {
    print_line(dump_json({{"file", file.path()}, {"metadata", file.metadata()}, {"tensors", list}}));
    return;
  }
  for (const auto& [key, value] : file.metadata()) print_line(key + ": " + value);
  for (const auto& tensor : list)
    print_line(tensor["name"].get<std::string>() + "  " + tensor["dtype"].get<std::string>() + " " + tensor["shape"].dump() +
               (tensor.contains("first_not_finite") ? "  NOT FINITE" : ""));
  print_line(std::to_string(list.size()) + " tensors, " + format_bytes(static_cast<double>(bytes)));
}

void show_model(const Options& options, const std::string& config_path) {
  const ModelConfig config = read_stored([&] {
    const ModelConfig read = read_config<ModelConfig>(Config::parse_json_file(config_path));
    check_model_config(read);
    return read;
  });
  const ShapesOnly no_memory;
  LanguageModel model(config);
  const int64_t near = state_bytes(model, 100), far = state_bytes(model, 100000);
  if (options.json) {
    print_line(dump_json({{"folder", options.path},
                          {"parameters", model.parameter_count()},
                          {"d_model", config.d_model},
                          {"layers", config.layers},
                          {"vocab_size", config.vocab_size},
                          {"state_bytes_100", near},
                          {"state_bytes_100000", far}}));
    return;
  }
  print_line(grouped(model.parameter_count()) + " parameters, d_model " + std::to_string(config.d_model) + ", vocabulary " +
             grouped(config.vocab_size));
  std::string layers;
  for (const auto& layer : config.layers) layers += (layers.empty() ? "" : " ") + layer;
  print_line("layers: " + layers);
  print_line("state: " + grouped(near) + " bytes after 100 tokens, " + grouped(far) + " after 100,000");
  const std::string weights = (std::filesystem::path(options.path) / "model.safetensors").string();
  if (path_exists(weights)) show_tensors(SafetensorsFile(weights), false);
}

void run(const Options& options) {
  const std::filesystem::path path(options.path);
  if (!path_exists(options.path)) throw Error(options.path + ": does not exist");
  if (!std::filesystem::is_directory(path)) return show_tensors(SafetensorsFile(options.path), options.json);
  const std::string config = (path / "config.json").string();
  if (!path_exists(config)) throw Error(options.path + ": holds no config.json, so it is not a model's folder");
  show_model(options, config);
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("path", options->path, "a model's folder, or a .safetensors file");
  app.add_flag("--json", options->json, "for machines");
  app.callback([options] { run(*options); });
}

}  // namespace

const Command command_inspect{"inspect", "What a model's folder or a safetensors file holds", setup};

}  // namespace based::apps
