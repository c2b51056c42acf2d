#include <algorithm>
#include <optional>

#include "apps/command.h"
#include "based/core/files.h"
#include "based/core/interrupt.h"
#include "based/core/json.h"
#include "based/core/output_folder.h"
#include "based/core/progress.h"
#include "based/core/utf8.h"
#include "based/experiments/recall_eval.h"
#include "based/models/weights.h"
#include "theory/constructed/causal_solver.h"
#include "theory/constructed/statements.h"
#include "theory/draw.h"
#include "theory/integers.h"
#include "theory/recall_program.h"
#include "theory/statements/recall_inputs.h"

namespace based::apps {
namespace theory_command {

using theory::Statement;

struct ListOptions {
  bool json = false;
};

void list(const ListOptions& options) {
  Json all = Json::array();
  for (const Statement* statement : all_statements()) {
    if (options.json)
      all.push_back({{"name", statement->name},
                     {"place", statement->place},
                     {"claim", statement->claim},
                     {"can_be_shown", statement->can_be_drawn()}});
    else
      print_line(padded(statement->name, 25) + " " + statement->claim + "  [" + statement->place + "]");
  }
  if (options.json) print_line(dump_json(all));
}

struct VerifyOptions {
  std::vector<std::string> names;
  bool json = false;
};

std::string layers_text(const theory::Result& result) {
  if (!result.least_layers) return "-";
  const std::string least = std::to_string(*result.least_layers), most = std::to_string(*result.most_layers);
  return least == most ? least : least + "–" + most;
}

// Pads to a number of characters, while `padded` counts bytes: sizes contain ≤ and ….
std::string column(const std::string& text, size_t width) {
  const auto characters = static_cast<size_t>(utf8_length(text));
  return text + std::string(width > characters ? width - characters : 0, ' ') + "  ";
}

void print_row(const std::string& name, const std::string& verdict, const std::string& built, const std::string& claimed,
               const std::string& inputs, const std::string& sizes) {
  print_line(column(name, 25) + column(verdict, 17) + column(built, 7) + column(claimed, 20) + padded_left(inputs, 10) + "  " + sizes);
}

void print_result(const Statement& statement, const theory::Result& result) {
  print_row(statement.name, result.verdict(), layers_text(result), result.claimed_layers.empty() ? "-" : result.claimed_layers,
            grouped(result.inputs), result.sizes);
  for (const auto& [printed, shown, repair] : result.corrections) {
    print_line("    printed: " + printed);
    print_line("      but:   " + shown);
    print_line("      so:    " + repair);
  }
  for (const std::string& note : result.notes) print_line("    note:    " + note);
  for (const std::string& failure : result.failures) print_line("    FAILS:   " + failure);
}

Json result_json(const Statement& statement, const theory::Result& result) {
  Json corrections = Json::array();
  for (const auto& [printed, shown, repair] : result.corrections)
    corrections.push_back({{"printed", printed}, {"shown", shown}, {"repair", repair}});
  Json json{{"name", statement.name},      {"place", statement.place},   {"claim", statement.claim},
            {"sizes", result.sizes},       {"inputs", result.inputs},    {"layers_claimed", result.claimed_layers},
            {"verdict", result.verdict()}, {"corrections", corrections}, {"notes", result.notes},
            {"failures", result.failures}};
  if (result.least_layers) json["layers_built"] = {*result.least_layers, *result.most_layers};
  return json;
}

theory::Result verified(const Statement& statement, size_t number, size_t count) {
  Progress progress(std::string(statement.name) + " (" + std::to_string(number + 1) + " of " + std::to_string(count) + ")",
                    statement.inputs);
  theory::Trial trial([&](int64_t inputs) {
    progress.update(inputs);
    if (interrupted()) throw Error("interrupted while " + std::string(statement.name) + " was being verified");
  });
  try {
    statement.verify(trial);
  } catch (const Error& error) {
    if (interrupted()) throw;
    trial.require(false, error.what());  // for example an integer overflow
  }
  progress.finish();
  const int64_t inputs = trial.result().inputs;
  if (trial.result().holds())
    trial.require(inputs == statement.inputs, "tried " + std::to_string(inputs) + " inputs where " + std::to_string(statement.inputs) +
                                                  " are stated: the number in the statement's file is an old one");
  return trial.result();
}

void verify(const VerifyOptions& options) {
  std::vector<const Statement*> chosen;
  for (const std::string& name : options.names) chosen.push_back(&theory::find_statement(all_statements(), name));
  if (chosen.empty()) chosen = all_statements();
  const InterruptScope scope;
  Json results = Json::array();
  int64_t failed = 0, repaired = 0;
  if (!options.json) print_row("statement", "verdict", "layers", "claimed", "inputs", "sizes");
  for (size_t k = 0; k < chosen.size(); ++k) {
    const theory::Result result = verified(*chosen[k], k, chosen.size());
    failed += !result.holds();
    repaired += result.holds() && !result.corrections.empty();
    if (options.json)
      results.push_back(result_json(*chosen[k], result));
    else
      print_result(*chosen[k], result);
  }
  if (options.json)
    print_text(dump_json({{"pass", failed == 0}, {"statements", results}}, 2) + "\n");
  else
    print_line(grouped(static_cast<int64_t>(chosen.size())) +
               " statements: " + grouped(static_cast<int64_t>(chosen.size()) - failed - repaired) + " hold, " + grouped(repaired) +
               " as repaired, " + grouped(failed) + " fail");
  if (failed > 0) throw Exit{1};
}

struct ShowOptions {
  std::string name, out;
  bool json = false;
};

void show(const ShowOptions& options) {
  const Statement& statement = theory::find_statement(all_statements(), options.name);
  if (!statement.can_be_drawn()) {
    std::string names;
    for (const Statement* other : all_statements())
      if (other->can_be_drawn()) names += (names.empty() ? "" : ", ") + std::string(other->name);
    throw UsageError("theory show: " + options.name + " has no construction to draw; these have: " + names);
  }
  if (!options.out.empty()) write_file_atomic(options.out, theory::draw_svg(statement));
  if (!options.json) return print_text(theory::draw_text(statement));
  Json layers = Json::array();
  const auto [about, frames] = theory::drawing_of(statement);
  for (const auto& [what, matrix] : frames) {
    Json rows = Json::array();
    for (int64_t i = 0; i < matrix.size.rows; ++i) rows.push_back(std::vector<int64_t>(matrix.row(i), matrix.row(i) + matrix.size.columns));
    layers.push_back({{"what", what}, {"rows", rows}});
  }
  Json json{{"name", statement.name}, {"about", about}, {"layers", frames.size() - 1}, {"frames", layers}};
  if (statement.example != nullptr) {
    const theory::Program program = statement.example().program;
    json["outer"] = {program.outer.rows, program.outer.columns};
    json["inner"] = {program.inner.rows, program.inner.columns};
    json["parameters"] = program.parameters();
    json["all_parameters"] = program.all_parameters();
  }
  print_line(dump_json(json));
}

constexpr int64_t kMostRun = 128;  // larger programs are only built and counted, because their matrices take gigabytes

struct RecallOptions {
  int64_t pairs = 16, vocab_size = 64, inputs = 1024, examples = 500;
  std::string out, model;
  bool overwrite = false, json = false;
};

// Runs the paper's MQAR program on `inputs` random inputs and returns the result.
theory::Result measured_mqar(const theory::RecallSizes& sizes, const theory::Program& program, int64_t inputs) {
  const InterruptScope scope;
  Progress progress("recall", inputs);
  theory::Trial trial([&](int64_t done) {
    progress.update(done);
    if (interrupted()) throw Error("interrupted after " + std::to_string(done) + " inputs");
  });
  Random random(1);
  theory::RecallCheck check(trial, sizes, program);
  for (int64_t k = 0; k < inputs; ++k) check.add(theory::draw_tokens(random, sizes, k % theory::kTokenKinds));
  check.finish();
  progress.finish();
  return trial.result();
}

Json program_json(const theory::Program& program, const theory::Result& result, const RecallOptions& options) {
  const int64_t longest = std::max<int64_t>(2, std::max(options.pairs, options.vocab_size));
  return {{"layers", program.depth()},
          {"log_log", theory::ceil_log2(theory::ceil_log2(longest))},
          {"inner", {program.inner.rows, program.inner.columns}},
          {"parameters", program.parameters()},
          {"all_parameters", program.all_parameters()},
          {"inputs", result.inputs},
          {"pass", result.holds()}};
}

// A model's size and its recall, measured as by `based mqar eval`.
Json model_json(LanguageModel& model, const RecallTask& task) {
  const RecallData data(make_recall_segments(task), torch::kCPU);
  return {{"layers", model.layers()},
          {"width", model.config().d_model},
          {"parameters", model.parameter_count()},
          {"state_bytes", state_bytes(model, task.test.front().length)},
          {"recall", measure_recall(model, data.test(), 32).mean}};
}

// Adds the causal solver for this vocabulary and, if one is given, the trained model.
void add_models(Json& json, const RecallOptions& options) {
  RecallTask task;
  task.vocab_size = options.vocab_size;
  task.test = {{4 * options.pairs, options.pairs, options.examples}};
  check_recall_task(task);
  const auto solver = CausalSolver{options.vocab_size, task.test.front().length}.build();
  json["causal_solver"] = model_json(*solver, task);
  json["length"] = task.test.front().length;
  if (!options.model.empty()) {
    const LoadedModel trained = load_model(options.model);
    if (trained.model->config().vocab_size != options.vocab_size)
      throw UsageError("--model: " + options.model + " has a vocabulary of " + std::to_string(trained.model->config().vocab_size) +
                       " tokens, --vocab is " + std::to_string(options.vocab_size));
    json["model"] = model_json(*trained.model, task);
  }
  if (!options.out.empty()) save_model(*solver, options.out);
}

std::string size_columns(const Json& size, const std::string& width) {
  return padded_left(std::to_string(size["layers"].get<int64_t>()), 6) + "  " + padded_left(width, 15) +
         padded_left(grouped(size["parameters"].get<int64_t>()), 14);
}

std::string model_line(const std::string& name, const Json& model) {
  return padded(name, 18) + size_columns(model, grouped(model["width"].get<int64_t>())) +
         padded_left(grouped(model["state_bytes"].get<int64_t>()), 14) + "  " + format_number(model["recall"].get<double>(), 4) +
         " on examples of ";
}

void print_recall(const Json& json, const theory::Program& program, const theory::Result& result) {
  print_line("recall of " + grouped(json["n"].get<int64_t>()) + " pairs out of a vocabulary of " + grouped(json["vocab"].get<int64_t>()));
  print_line("                  layers            width    parameters   state bytes  recall");
  const std::string inner = std::to_string(program.inner.rows) + " x " + std::to_string(program.inner.columns);
  print_line(padded("the paper's", 18) + size_columns(json["program"], inner) + padded_left("none", 14) + "  " +
             (!result.holds()      ? "FAILS: " + result.failures[0]
              : result.inputs == 0 ? "not run"
                                   : "all of " + grouped(result.inputs) + " inputs; looks ahead") +
             ", ⌈log log N̄⌉ = " + std::to_string(json["program"]["log_log"].get<int64_t>()));
  for (const auto& [name, key] : {std::pair{"causal solver", "causal_solver"}, {"trained", "model"}})
    if (json.contains(key)) print_line(model_line(name, json[key]) + grouped(json["length"].get<int64_t>()) + " tokens");
}

// Compares the program of the paper's upper bound with models: one with constructed weights, and a trained one.
void recall(const RecallOptions& options) {
  const theory::RecallSizes sizes{options.pairs, options.vocab_size};
  const bool fits = options.vocab_size % 2 == 0 && options.pairs < options.vocab_size / 2;
  if (!fits && (!options.out.empty() || !options.model.empty()))
    throw UsageError(
        "--n must be below half of --vocab with --out and --model, and --vocab even: of a model's tokens half are values and one the "
        "filler; got " +
        std::to_string(options.pairs) + " and " + std::to_string(options.vocab_size));
  if (options.inputs > 0 && std::max(options.pairs, options.vocab_size) > kMostRun)
    throw UsageError("--inputs: a program of --n or --vocab above " + std::to_string(kMostRun) +
                     " is counted and not run; give --inputs 0");
  std::optional<OutputFolder> folder;  // checked before the long construction
  if (!options.out.empty())
    folder.emplace(options.out, OutputRule{.own = {model_holding()}, .foreign = {tokenizer_holding(), checkpoints_holding()}},
                   options.overwrite);
  const theory::Program program = theory::recall_program(sizes);
  const theory::Result result = options.inputs > 0 ? measured_mqar(sizes, program, options.inputs) : theory::Result{};
  Json json{{"n", options.pairs}, {"vocab", options.vocab_size}, {"program", program_json(program, result, options)}};
  if (fits) add_models(json, options);
  if (folder) folder->keep();
  if (options.json)
    print_line(dump_json(json));
  else
    print_recall(json, program, result);
  if (!options.out.empty() && !options.json) print_line("the causal solver is in " + options.out);
  if (!result.holds()) throw Exit{1};
}

void setup_recall(CommandLine command) {
  auto options = std::make_shared<RecallOptions>();
  command.add_option("--n", options->pairs, "number of key-value pairs, each of which is asked for once", {1, theory::kMaxRecall});
  command.add_option("--vocab", options->vocab_size, "vocabulary size; for models token 0 is the filler, and the upper half are values",
                     {2, theory::kMaxRecall});
  command.add_option("--inputs", options->inputs, "inputs to run the paper's program on; 0: only count its layers and parameters",
                     {0, 1'000'000'000});
  command.add_option("--examples", options->examples, "examples to measure models on", {1});
  command.add_option("--model", options->model, "folder of a trained model to compare with", kPath);
  command.add_option("--out", options->out, "save the causal solver as a model in this folder, which must hold no model and no tokenizer",
                     kPath);
  command.add_flag("--overwrite", options->overwrite, "replace the model in --out");
  command.add_flag("--json", options->json, "print JSON");
  command.callback([options] { recall(*options); });
}

void setup(CommandLine app) {
  setup_recall(app.add_subcommand("mqar", "Recall with constructed weights: the paper's program, and a causal model that can be saved"));

  auto listing = std::make_shared<ListOptions>();
  CommandLine command = app.add_subcommand("list", "List every statement that can be verified");
  command.add_flag("--json", listing->json, "print JSON");
  command.callback([listing] { list(*listing); });

  auto verifying = std::make_shared<VerifyOptions>();
  command = app.add_subcommand("verify", "Build the paper's constructions, run them, and compare the results with its statements");
  command.add_option("names", verifying->names, "statements, by their names in `based theory list` (default: all)");
  command.add_flag("--json", verifying->json, "print JSON");
  command.offer("names", [] { return names_of(all_statements()); });
  command.callback([verifying] { verify(*verifying); });

  auto showing = std::make_shared<ShowOptions>();
  command = app.add_subcommand("show", "Draw a construction layer by layer on a small input");
  command.add_required("name", showing->name, "a statement, by its name in `based theory list`");
  command.add_option("--out", showing->out, "also write an SVG to this file", kPath);
  command.add_flag("--json", showing->json, "print JSON");
  command.offer("name", [] { return names_of(all_statements()); });
  command.callback([showing] { show(*showing); });
}

}  // namespace theory_command

const Command command_theory{"theory", "Build and run the paper's constructions, and compare them with its statements",
                             theory_command::setup};

}  // namespace based::apps
