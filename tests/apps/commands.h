// One or more rows for each subcommand of `based`: arguments with which it works on small files, and wrong values of its options.
// every_command_test.cpp runs the same tests on each row.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace based {

// In `arguments`, "@/name" is a file in the test's folder, and "%" is a path that does not exist yet, "%.x" one with that ending. A word
// with "<" before it is an input file; a word with "|" before it is an input file that may be a pipe.
struct CommandRow {
  std::string name, arguments;
  // Text options and a value that each must refuse; any_text if every value is valid. Options that name inputs are in `arguments`.
  std::map<std::string, std::string> bad_text = {};
  // For commands that catch signals: additional arguments that make the command run long, and its message after a signal.
  std::string lasting = {}, stopped = {};
  std::string leaves = {};  // path below "%" that exists even if standard output could not be written
};

inline const std::string any_text = "any text";
inline const std::string no_path = "/dev/null/x";  // where nothing can be written

inline const std::map<std::string, std::string> bad_presets{{"--out", no_path}, {"--tokenizer", no_path}, {"--dtype", "fp8"}};
inline const std::map<std::string, std::string> bad_perplexity{{"--data", no_path}, {"--dtype", "fp8"},    {"--device", "tpu"},
                                                               {"--format", "csv"}, {"--slices", no_path}, {"--per-token", no_path}};

// --data is not read where the task names its own file.
inline const std::map<std::string, std::string> bad_eval{
    {"--tasks", "nonsense"},      {"--data", any_text},     {"--statements", any_text}, {"--out", no_path},
    {"--dump-requests", no_path}, {"--tokenizer", "bytes"}, {"--device", "tpu"},        {"--dtype", "fp8"}};

inline const std::map<std::string, std::string> bad_serve{
    {"--name", any_text},           {"--device", "tpu"},    {"--dtype", "fp8"},     {"--template", no_path}, {"--state-dir", no_path},
    {"--seal-key", no_path},        {"--profile", no_path}, {"--address", "here"},  {"--unix", no_path},     {"--cors", "nonsense"},
    {"--tls-certificate", no_path}, {"--tls-key", no_path}, {"--api-keys", no_path}};

inline std::vector<CommandRow> dna_command_rows() {
  return {
      {"dna rows",
       "--fasta <@/dna.fa --bed <@/dna.bed --length 16 --out %",
       {{"--form", "csv"}, {"--split", "dev"}, {"--out", no_path}},
       "",
       "",
       "/00000.tokens"},
      {"dna context", "--fasta <@/dna.fa --bed <@/dna.bed --after train", {{"--split", "dev"}, {"--after", "dev"}}},
      {"dna kmers", "--train <@/classes.csv --dev <@/classes.csv --test <@/classes.csv"},
  };
}

inline const std::map<std::string, std::string> bad_generate{
    {"--prompt", any_text},       {"--prompts", no_path}, {"--out", no_path}, {"--stop", any_text}, {"--save-state", no_path},
    {"--logit-bias", "nonsense"}, {"--draft", no_path},   {"--dtype", "fp8"}, {"--device", "tpu"},  {"--profile", no_path}};

inline const std::map<std::string, std::string> bad_convert{{"--out", no_path},      {"--tokenizer", no_path}, {"--expect", no_path},
                                                            {"--dtype", "fp8"},      {"--format", "csv"},      {"--weights", "int2"},
                                                            {"--gate-text", no_path}};

inline std::vector<CommandRow> convert_command_rows() {
  return {
      {"convert", "<@/published --tokenizer bytes --out %", bad_convert, "", "", "/model.safetensors"},
      {"convert", "<@/model --weights int8 --gate-text |@/text.txt --out %", bad_convert},
      {"convert", "<@/model --hf --out %", bad_convert, "", "", "/config.json"},
  };
}

inline std::vector<CommandRow> bench_command_rows() {
  return {
      {"bench",
       "--model <@/recall decode --quick --threads 1",
       {{"--device", "tpu"}, {"--commit", any_text}, {"--preset", "based-tine"}, {"--plot", no_path}}},
      {"bench figures",
       "--small --only window_products --threads 1 --out %",
       {{"--device", "tpu"},
        {"--only", "window_product"},
        {"--out", no_path},
        {"--plot", no_path},
        {"--read", no_path},
        {"--commit", any_text}}},
  };
}

inline std::vector<CommandRow> joined(std::vector<CommandRow> rows, const std::vector<CommandRow>& more) {
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

inline const std::vector<CommandRow>& command_rows() {
  static const std::vector<CommandRow> others{
      {"mixers", "", {{"--set", "nonsense"}}},
      {"presets", "", bad_presets},
      {"presets", "based-tiny --out % --tokenizer bytes", bad_presets, "", "", "/config.json"},
      {"train",
       "|@/run.toml --out %",
       {{"--set", "nonsense"},
        {"--device", "tpu"},
        {"--devices", "tpu"},
        {"--skip-windows", "nonsense"},
        {"--out", no_path},
        {"--profile", no_path}},
       "--set train.steps=10000000",
       "stopped by a signal",
       "/model.safetensors"},
      {"generate", "--model <@/model --prompt the --max-tokens 5 --state <@/a.state --save-state %", bad_generate,
       "--max-tokens 10000000 --temperature 0",  // with sampling, the end of text would come at some time
       "tokens/s"},
      {"serve", "--model <@/model --port 0", bad_serve},
      {"perplexity", "--model <@/model --data |@/text.txt", bad_perplexity, "--data @/long.txt", "interrupted"},
      {"perplexity", "--model <@/model --data @/shards --context 16 --slices <@/shards --per-token %.safetensors", bad_perplexity},
      {"tokenize train",
       "|@/text.txt --vocab-size 300 --out %",
       {{"--out", no_path}, {"--special", "x"}, {"--format", "csv"}},
       "",
       "",
       "/tokenizer.json"},
      {"tokenize encode", "--tokenizer <@/bpe |@/lines.jsonl"},
      {"tokenize decode", "--tokenizer <@/bpe |@/ids.jsonl"},
      {"tokenize inspect", "--tokenizer <@/bpe"},
      {"data pack",
       "|@/lines.jsonl --tokenizer <@/bpe --out %",
       {{"--out", no_path}, {"--format", "csv"}},
       "@/long.jsonl",
       "interrupted; no shards are left there",
       "/00000.tokens"},
      {"data inspect", "<@/shards --tokenizer <@/bpe"},
      {"mqar generate", "--vocab-size 64 --length 32 --examples 20", {{"--compat", "zology"}, {"--dump", no_path}}},
      {"mqar eval", "--model <@/recall --length 32 --examples 20"},
      {"experiment run",
       "|@/sweep.toml --out %",
       {{"--set", "nonsense"}, {"--out", no_path}, {"--scale", "huge"}, {"--device", "tpu"}, {"--commit", any_text}},
       "--set training.epochs=1000000",
       "interrupted; 0 of 1 runs are finished",
       "/results"},
      {"experiment status", "|@/sweep.toml", {{"--set", "nonsense"}, {"--out", any_text}, {"--scale", "huge"}}},
      {"experiment plot", "|@/sweep.toml --out @/sweep", {{"--set", "nonsense"}, {"--out", no_path}, {"--scale", "huge"}}},
      {"experiment pack", "|@/sweep.toml --out @/sweep", {{"--out", no_path}}},
      {"experiment curves", "@/model --out %", {{"--title", any_text}, {"--out", no_path}}, "", "", "/training-loss.svg"},
      {"state save", "% --model <@/model --prompt the", {{"--prompt", any_text}, {"--dtype", "fp8"}}},
      {"state load", "<@/a.state --model <@/model", {{"--dtype", "fp8"}}},
      {"state info", "<@/a.state"},
      {"inspect", "<@/recall", {{"--device", "tpu"}, {"--dtype", "fp8"}}},
      {"inspect", "based-360m --plan --device h200", {{"--device", "tpu"}, {"--dtype", "fp8"}}},  // reads sizes, no weights
      {"selftest", "", {{"--device", "tpu"}}},
      {"theory list", ""},
      {"theory verify", "shift_down", {}, "mqar", "interrupted while"},
      {"theory show", "one_hot", {{"--out", no_path}}},
      {"theory mqar",
       "--n 1 --vocab 4 --examples 8",
       {{"--out", no_path}, {"--model", no_path}},
       "--inputs 1000000000",
       "interrupted after"},
      {"eval", "--model <@/model --tasks @/own.toml --data @/shards --out %", bad_eval},
      {"eval", "--model <@/model --tasks winogrande --data <@/sets --out %", bad_eval, "--data @/long", "interrupted; the figures"},
      {"eval compare", "|@/eval.json |@/eval.json"},
      {"eval table", "|@/eval.json", {{"--paper", "nonsense"}, {"--form", "csv"}}},
      {"golden", "<@/golden.safetensors", {{"--data", any_text}, {"--tokenizer", any_text}}},
      {"completion", "bash"},
      {"man", ""},
      {"golden", "<@/slices.json", {{"--data", any_text}, {"--tokenizer", any_text}}},
  };
  static const std::vector<CommandRow> rows =
      joined(joined(joined(others, dna_command_rows()), convert_command_rows()), bench_command_rows());
  return rows;
}

}  // namespace based
