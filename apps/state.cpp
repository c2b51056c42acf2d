#include "apps/command.h"
#include "apps/place.h"
#include "based/core/files.h"
#include "based/core/json.h"
#include "based/core/progress.h"
#include "based/core/state_file.h"
#include "based/core/text.h"
#include "based/generate/session.h"
#include "based/generate/text_model.h"
#include "based/generate/text_stream.h"

namespace based::apps {
namespace state_command {

struct Options {
  std::string model, file, dtype;
  std::optional<std::string> prompt;
  bool json = false, invariant = false;
};

TextModel load(const Options& options) { return load_text_model(options.model, parse_place("cpu", options.dtype).dtype); }

// Reads the session's tokens, with a progress line for long prompts.
void read(Session& session, int64_t tokens) {
  std::optional<Progress> progress;
  if (tokens > default_prefill_tokens(torch::kCPU)) progress.emplace("prompt tokens", tokens);
  session.read([&](int64_t done) {
    if (progress) progress->update(done);
  });
}

void save(const Options& options) {
  if (options.prompt->empty()) throw UsageError("--prompt is empty: a state is saved after at least one token");
  check_writable(options.file);
  const TextModel loaded = load(options);
  const std::vector<int64_t> ids = encode_ids(*loaded.tokenizer, *options.prompt);
  Session session(*loaded.model, {.decode = {.invariant = options.invariant}});
  session.append(ids);
  read(session, static_cast<int64_t>(ids.size()) - 1);
  session.save(options.file, loaded.hash);
  print_line(options.json ? dump_json({{"file", options.file}, {"tokens", ids.size()}, {"state_bytes", session.state_bytes()}})
                          : "saved the state after " + grouped(static_cast<int64_t>(ids.size())) + " tokens (" +
                                format_bytes(static_cast<double>(session.state_bytes())) + ") in " + options.file);
}

// Loads the state into the model and prints the text that the state has read.
void load_and_show(const Options& options) {
  const TextModel loaded = load(options);
  Session session(*loaded.model);
  session.load(options.file, loaded.hash);
  const std::vector<int32_t> ids(session.ids().begin(), session.ids().end());
  const std::string text = loaded.tokenizer->decode(ids);
  if (options.json)
    print_line(dump_json({{"file", options.file}, {"tokens", ids.size()}, {"text", text}, {"loads", true}}));
  else
    print_text(text + "\n");
}

void info(const Options& options) {
  const StateFile file(options.file);
  const StateSnapshot& snapshot = file.snapshot();
  Json tensors = Json::array();
  int64_t bytes = 0;
  for (const auto& tensor : snapshot.tensors) {
    tensors.push_back(
        {{"name", tensor.name}, {"dtype", dtype_name(tensor.dtype)}, {"shape", tensor.shape}, {"bytes", tensor.bytes.size()}});
    if (const auto at = first_not_finite(tensor)) tensors.back()["first_not_finite"] = *at;
    bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  if (options.json) {
    print_line(dump_json({{"file", options.file},
                          {"model", snapshot.model_hash},
                          {"tokens", snapshot.token_ids.size()},
                          {"state_bytes", bytes},
                          {"tensors", tensors},
                          {"metadata", snapshot.metadata}}));
    return;
  }
  print_line("model " + snapshot.model_hash + ", " + grouped(static_cast<int64_t>(snapshot.token_ids.size())) + " tokens, " +
             grouped(bytes) + " bytes of state, checksum right");
  for (const auto& [key, value] : snapshot.metadata) print_line("  " + key + ": " + printable(value));
  for (const auto& tensor : tensors)
    print_line("  " + tensor["name"].get<std::string>() + "  " + tensor["dtype"].get<std::string>() + " " + tensor["shape"].dump() +
               (tensor.contains("first_not_finite") ? "  NOT FINITE" : ""));
}

void add(CommandLine app, const char* name, const char* summary, void (*body)(const Options&), bool needs_model, bool needs_prompt) {
  auto options = std::make_shared<Options>();
  CommandLine sub = app.add_subcommand(name, summary);
  sub.add_required("file", options->file, "the state file");
  if (needs_model) {
    sub.add_required("--model", options->model, "the model's folder");
    sub.add_option("--dtype", options->dtype, kDtypeHelp);
  }
  if (needs_prompt) {
    sub.add_required("--prompt", options->prompt, "the text whose state is saved");
    sub.add_flag("--invariant", options->invariant, "save a state that `generate --invariant` can use without reading the text again");
  }
  sub.add_flag("--json", options->json, "print JSON");
  sub.callback([options, body] { body(*options); });
}

void setup(CommandLine app) {
  add(app, "save", "Read a prompt and save the state after it; `generate --state FILE` continues from it", save, true, true);
  add(app, "load", "Load a state into its model and print the text that it has read", load_and_show, true, false);
  add(app, "info", "Print the contents of a state file", info, false, false);
}

}  // namespace state_command

const Command command_state{"state", "Save, load and inspect recurrent states", state_command::setup};

}  // namespace based::apps
