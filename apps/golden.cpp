#include "based/train/golden.h"
#include "apps/command.h"
#include "based/core/json.h"
#include "based/eval/dna_golden.h"
#include "based/eval/eval_golden.h"
#include "based/eval/slices_golden.h"

namespace based::apps {
namespace golden_command {

struct Options {
  std::vector<std::string> files;
  EvalGoldenOptions eval;
  bool json = false;
};

GoldenResult check(const std::string& file, const EvalGoldenOptions& eval) {
  if (is_eval_golden(file)) return check_eval_golden(file, eval);
  if (is_dna_golden(file)) return check_dna_golden(file);
  if (is_slices_golden(file)) return check_slices_golden(file);
  return is_optimizer_golden(file) ? check_optimizer_golden(file) : check_golden(file);
}

void run(const Options& options) {
  Json list = Json::array();
  int64_t failed = 0, skipped = 0, unreadable = 0;
  for (const auto& file : options.files) {
    GoldenResult result;
    try {
      result = check(file, options.eval);
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {  // the files after it are compared all the same
      ++unreadable;
      print_message(error.what());
      if (options.json) list.push_back({{"file", file}, {"pass", false}, {"error", error.what()}});
      continue;
    }
    failed += !result.pass && result.skipped.empty();
    skipped += !result.skipped.empty();
    if (options.json) {
      list.push_back({{"file", result.file},
                      {"mixer", result.mixer},
                      {"output_error", result.output_error},
                      {"gradient_error", result.gradient_error},
                      {"tolerance", result.tolerance},
                      {"worst", result.worst},
                      {"pass", result.pass},
                      {"skipped", result.skipped.empty() ? Json(nullptr) : Json(result.skipped)}});
      continue;
    }
    if (!result.skipped.empty())
      print_line("skipped  " + result.file + ": " + result.skipped);
    else
      print_line(std::string(result.pass ? "pass     " : "FAIL     ") + result.file + "  output " + scientific(result.output_error) +
                 (result.has_gradients ? "  gradients " + scientific(result.gradient_error) : "") + "  tolerance " +
                 scientific(result.tolerance) + (result.pass ? "" : "  worst: " + result.worst));
  }
  if (options.json)
    print_text(dump_json(list, 2) + "\n");
  else
    print_line(std::to_string(options.files.size() - static_cast<size_t>(failed + skipped + unreadable)) + " passed, " +
               std::to_string(failed) + " failed, " + std::to_string(skipped) + " skipped" +
               (unreadable > 0 ? ", " + std::to_string(unreadable) + " not readable" : ""));
  if (failed + unreadable > 0) throw Exit{1};
}

void setup(CommandLine app) {
  auto options = std::make_shared<Options>();
  app.add_required("file", options->files,
                   "golden files: .safetensors of mixers, models and optimizers, .json of perplexity by slices and of DNA, folders of "
                   "evaluation requests");
  app.add_option("--data", options->eval.data, "folder of the unpacked data sets, for requests of evaluations");
  app.add_option("--tokenizer", options->eval.tokenizer, "tokenizer of the requests of evaluations (default: gpt2-bpe in --data)");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { run(*options); });
}

}  // namespace golden_command

const Command command_golden{"golden", "Compare mixers, models and perplexity by slices with stored results of other implementations",
                             golden_command::setup};

}  // namespace based::apps
