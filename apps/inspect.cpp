#include <filesystem>

#include "apps/command.h"
#include "based/core/folders.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/core/safetensors.h"
#include "based/generate/step_plan.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/device.h"
#include "based/models/language_model.h"
#include "based/models/quantised.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"

namespace based::apps {
namespace inspect_command {

struct Options {
  std::string path, device, dtype;
  int64_t slots = 0;
  bool json = false, plan = false, invariant = false;
};

Json tensor_json(const TensorView& tensor) {
  Json json{{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}};
  if (const auto at = first_not_finite(tensor)) json["first_not_finite"] = *at;
  return json;
}

int64_t weight_bytes(const SafetensorsFile& file) {
  int64_t bytes = 0;
  for (const auto& tensor : file.tensors()) bytes += static_cast<int64_t>(tensor.bytes.size());
  return bytes;
}

void show_tensors(const SafetensorsFile& file, bool json) {
  Json list = Json::array();
  for (const auto& tensor : file.tensors()) list.push_back(tensor_json(tensor));
  if (json) {
    print_line(dump_json({{"file", file.path()}, {"metadata", file.metadata()}, {"tensors", list}}));
    return;
  }
  for (const auto& [key, value] : file.metadata()) print_line(key + ": " + value);
  for (const auto& tensor : list)
    print_line(tensor["name"].get<std::string>() + "  " + tensor["dtype"].get<std::string>() + " " + tensor["shape"].dump() +
               (tensor.contains("first_not_finite") ? "  NOT FINITE" : ""));
  print_line(std::to_string(list.size()) + " tensors, " + format_bytes(static_cast<double>(weight_bytes(file))));
}

StoredConfig read_folder_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  if (!path_exists(path)) throw Error(folder + ": holds no config.json, so it is not a model's folder");
  return read_stored_config(path);
}

decode::Gpu parse_gpu(const std::string& name) {
  if (name == "h200") return kernels::kH200;
  try {
    const torch::Device device = parse_device(name, "--device");
    return device.is_cpu() ? decode::Gpu{} : decode::gpu_of(device);
  } catch (const UsageError& error) {
    throw UsageError(std::string(error.what()) + "; --device h200 plans for an H200, which need not be present");
  }
}

Json plan_json(const decode::Plan& plan) {
  Json lines = Json::array();
  for (const auto& line : plan.report()) {
    lines.push_back(
        {{"operator", line.op}, {"form", decode::form_name(line.form)}, {"operators", line.units}, {"launches", line.launches}});
    if (!line.why.empty()) lines.back()["why"] = line.why;
  }
  return {{"operators", plan.units().size()}, {"launches", plan.launches()}, {"lines", lines}};
}

// Prints how a decoding step of the model is executed on a device: which operators are fused, and how many kernels are launched.
void show_plan(Options options) {
  if (options.device.empty()) options.device = "cuda";
  if (options.dtype.empty()) options.dtype = "bf16";
  if (options.slots == 0) options.slots = 1;
  const decode::Gpu gpu = parse_gpu(options.device);
  const StepPlanOptions plan_options{options.slots, parse_float_type(options.dtype, "--dtype"), options.invariant};
  const ModelConfig config = path_exists(options.path) ? read_folder_config(options.path).config : find_preset(options.path);
  const auto plan = plan_decode_step(config, gpu, plan_options);
  if (options.json) return print_line(dump_json(plan_json(*plan)));
  print_line("a step of " + std::to_string(options.slots) + (options.slots == 1 ? " sequence" : " sequences") + " in " + options.dtype +
             " on " + options.device + ": " + grouped(static_cast<int64_t>(plan->units().size())) + " operators in " +
             grouped(plan->launches()) + " launches");
  for (const auto& line : plan->report())
    print_line(padded_left(std::to_string(line.units), 5) + " " + padded(line.op, 30) + " " + padded(decode::form_name(line.form), 11) +
               padded_left(std::to_string(line.launches), 5) + (line.launches == 1 ? " launch  " : " launches") +
               (line.why.empty() ? "" : "  " + line.why));
}

// The names of weights that contain infinities or NaN.
Json names_not_finite(const std::string& weights) {
  Json names = Json::array();
  if (!path_exists(weights)) return names;
  const SafetensorsFile file(weights);
  for (const auto& tensor : file.tensors())
    if (first_not_finite(tensor)) names.push_back(tensor.name);
  return names;
}

void show_model(const Options& options) {
  const StoredConfig stored = read_folder_config(options.path);
  const ModelConfig& config = stored.config;
  const std::string form = stored.form ? weight_form_name(*stored.form) : "full";
  const ShapesOnly no_memory;
  LanguageModel model(config);
  const std::string weights = (std::filesystem::path(options.path) / "model.safetensors").string();
  const int64_t near = state_bytes(model, 100), far = state_bytes(model, 100000);
  if (options.json) {
    print_line(dump_json({{"folder", options.path},
                          {"parameters", model.parameter_count()},
                          {"d_model", config.d_model},
                          {"layers", config.layers},
                          {"vocab_size", config.vocab_size},
                          {"weights", form},
                          {"weight_bytes", path_exists(weights) ? weight_bytes(SafetensorsFile(weights)) : 0},
                          {"state_bytes_100", near},
                          {"state_bytes_100000", far},
                          {"not_finite", names_not_finite(weights)}}));
    return;
  }
  print_line(grouped(model.parameter_count()) + " parameters, d_model " + std::to_string(config.d_model) + ", vocabulary " +
             grouped(config.vocab_size));
  std::string layers;
  for (const auto& layer : config.layers) layers += (layers.empty() ? "" : " ") + layer;
  print_line("layers: " + layers);
  if (stored.form)
    print_line("weights: linear layers in " + form + ", the embedding in int8" +
               (*stored.form == ops::WeightForm::int4 ? ", for the CPU only" : ""));
  print_line("state: " + grouped(near) + " bytes after 100 tokens, " + grouped(far) + " after 100,000");
  if (path_exists(weights)) show_tensors(SafetensorsFile(weights), false);
}

void run(const Options& options) {
  if (options.plan) return show_plan(options);
  if (!options.device.empty() || !options.dtype.empty() || options.slots != 0 || options.invariant)
    throw UsageError("--device, --dtype, --slots and --invariant need --plan");
  if (!path_exists(options.path)) throw Error(options.path + ": does not exist");
  if (!is_folder(options.path)) return show_tensors(SafetensorsFile(options.path), options.json);
  show_model(options);
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("path", options->path, "a model's folder, or a .safetensors file; with --plan also a preset's name");
  app.add_flag("--json", options->json, "print JSON");
  app.add_flag("--plan", options->plan,
               "show how the operators of a decoding step are executed: which are fused into one launch, and why others are not");
  app.add_option("--device", options->device, "with --plan: cuda (the default), cuda:N, cpu, or h200, which need not be present");
  app.add_option("--slots", options->slots, "with --plan: number of sequences (default: 1)", {1, 65536});
  app.add_option("--dtype", options->dtype, "with --plan: bf16 (the default), fp32 or fp64");
  app.add_flag("--invariant", options->invariant, "with --plan: show the steps of `generate --invariant`");
  app.offer(
      "path", [] { return names_of(presets()); }, true);
  app.offer("--device", {"cuda", "cpu", "h200"});
  app.callback([options] { run(*options); });
}

}  // namespace inspect_command

const Command command_inspect{"inspect", "Print the contents of a model's folder or a safetensors file", inspect_command::setup};

}  // namespace based::apps
