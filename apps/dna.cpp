#include "based/data/dna.h"
#include "apps/command.h"
#include "based/core/json.h"
#include "based/data/bed.h"
#include "based/data/dna_context.h"
#include "based/data/dna_kmers.h"

namespace based::apps {
namespace dna_command {

struct RowsOptions {
  std::vector<std::string> fasta;
  std::string bed, form = "tiles", out;
  DnaRowOptions rows;
  bool json = false;
};

void check_split(const char* option, const std::string& split) {
  if (split != "train" && split != "valid" && split != "test")
    throw UsageError(std::string(option) + " must be train, valid or test, got " + in_quotes(split));
}

void rows(RowsOptions options) {
  check_split("--split", options.rows.split);
  options.rows.form = row_form(options.form);
  const DnaRowReport report = pack_dna_rows(read_fasta(options.fasta), options.bed, options.rows, options.out);
  if (options.json) {
    print_line(dump_json({{"intervals", report.intervals},
                          {"rows", report.rows},
                          {"bases", report.bases},
                          {"rows_of_other_splits", report.other_split},
                          {"folder", options.out}}));
    return;
  }
  print_line(grouped(report.rows) + " rows of " + grouped(options.rows.length) + " bases, " + grouped(report.bases) + " bases in all, of " +
             grouped(report.intervals) + " intervals of the split '" + options.rows.split + "', in " + options.out);
  if (report.other_split > 0) print_line(grouped(report.other_split) + " rows left out: they reach into intervals of another split");
}

void setup_rows(CommandLine app) {
  auto options = std::make_shared<RowsOptions>();
  app.add_required("--fasta", options->fasta, "FASTA file with sequences, not compressed; may be given several times");
  app.add_required("--bed", options->bed, "intervals: sequence, start, end and split (train, valid, test), with tabs between them");
  app.add_option("--split", options->rows.split, "the split whose intervals are packed");
  app.add_option("--length", options->rows.length, "bases per row; train.length of the models that read them");
  app.add_option("--form", options->form,
                 "tiles: each interval in consecutive rows; hyenadna: one row, the interval's first bases; caduceus: 2^20 bases from the "
                 "interval's start in rows");
  app.add_required("--out", options->out, "folder for the shards; it must not hold other shards");
  app.add_flag("--json", options->json, "print JSON");
  app.offer("--split", {"train", "valid", "test"});
  app.offer("--form", {"tiles", "hyenadna", "caduceus"});
  app.callback([options] { rows(*options); });
}

struct ContextOptions {
  std::vector<std::string> fasta;
  std::string bed, split = "valid", after;
  int64_t order = 6;
  bool json = false;
};

void print_score(const std::string& name, const DnaContextModel::Score& score, bool json) {
  if (json) {
    print_line(
        dump_json({{"data", name}, {"bases", score.bases}, {"bits_per_base", score.bits_per_base()}, {"perplexity", score.perplexity()}}));
    return;
  }
  print_line(name + ": " + grouped(score.bases) + " bases, " + format_number(score.bits_per_base(), 4) + " bits a base, perplexity " +
             format_number(score.perplexity(), 4));
}

void context(const ContextOptions& options) {
  check_split("--split", options.split);
  if (!options.after.empty()) check_split("--after", options.after);
  if (options.bed.empty()) {
    if (!options.after.empty()) throw UsageError("--after needs --bed, which says the intervals of the split");
    for (const std::string& file : options.fasta) {
      DnaContextModel model(options.order);
      DnaContextModel::Score score;
      for (const FastaSequence& sequence : read_fasta({file})) model.add(sequence.letters, score);
      print_score(file, score, options.json);
    }
    return;
  }
  const std::vector<FastaSequence> sequences = read_fasta(options.fasta);
  DnaContextModel model(options.order);
  if (!options.after.empty()) {
    DnaContextModel::Score ignored;
    for_each_interval(sequences, options.bed, options.after,
                      [&](const BedInterval&, std::string_view letters) { model.add(letters, ignored); });
  }
  std::vector<std::pair<std::string, DnaContextModel::Score>> scores;  // by sequence, in the order of the file
  DnaContextModel::Score all;
  for_each_interval(sequences, options.bed, options.split, [&](const BedInterval& interval, std::string_view letters) {
    if (scores.empty() || scores.back().first != interval.sequence) scores.emplace_back(interval.sequence, DnaContextModel::Score());
    DnaContextModel::Score one;
    model.add(letters, one);
    for (DnaContextModel::Score* sum : {&scores.back().second, &all}) sum->bases += one.bases, sum->bits += one.bits;
  });
  for (const auto& [name, score] : scores) print_score(name, score, options.json);
  if (scores.size() > 1) print_score("all of " + options.split, all, options.json);
}

void setup_context(CommandLine app) {
  auto options = std::make_shared<ContextOptions>();
  app.add_required("--fasta", options->fasta, "FASTA file with sequences, not compressed; may be given several times");
  app.add_option("--bed", options->bed, "score the intervals of a split by this file; without it, all of each FASTA file on its own");
  app.add_option("--split", options->split, "with --bed: the split that is scored");
  app.add_option("--after", options->after, "with --bed: count the intervals of this split first, usually train");
  app.add_option("--order", options->order, "bases that a base is predicted from", {0, 12});
  app.add_flag("--json", options->json, "print JSON, a line for each sequence or file");
  app.offer("--split", {"train", "valid", "test"});
  app.offer("--after", {"train", "valid", "test"});
  app.callback([options] { context(*options); });
}

struct KmersOptions {
  std::string train, dev, test;
  bool json = false;
};

Json figures_json(const ConfusionMatrix& confusion) {
  return {{"cases", confusion.cases()}, {"accuracy", confusion.accuracy()}, {"mcc", confusion.mcc()}, {"f1", confusion.macro_f1()}};
}

void kmers(const KmersOptions& options) {
  const auto train = read_labelled_sequences(options.train), dev = read_labelled_sequences(options.dev),
             test = read_labelled_sequences(options.test);
  const std::vector<std::string> classes = class_names(train, options.train);
  const DnaTokenizer tokenizer;
  const KmerFloor floor = measure_kmer_floor({train, classes, tokenizer, 0}, {dev, classes, tokenizer, 0}, {test, classes, tokenizer, 0},
                                             static_cast<int64_t>(classes.size()));
  if (options.json) {
    print_line(dump_json({{"strength", floor.strength}, {"dev", figures_json(floor.dev)}, {"test", figures_json(floor.test)}}));
    return;
  }
  for (const auto& [name, confusion] : {std::pair("dev: ", floor.dev), std::pair("test:", floor.test)}) {
    print_line(std::string(name) + " accuracy " + format_number(100 * confusion.accuracy(), 1) + " %, MCC " +
               format_number(confusion.mcc(), 3) + ", F1 " + format_number(confusion.macro_f1(), 3) + " (" + grouped(confusion.cases()) +
               " sequences)");
  }
}

void setup_kmers(CommandLine app) {
  auto options = std::make_shared<KmersOptions>();
  app.add_required("--train", options->train, "training set: a CSV file with sequence and label, or a folder with a folder for each class");
  app.add_required("--dev", options->dev, "set that chooses the strength of the penalty");
  app.add_required("--test", options->test, "set that is measured once");
  app.add_flag("--json", options->json, "print JSON");
  app.callback([options] { kmers(*options); });
}

void setup(CommandLine app) {
  setup_rows(app.add_subcommand("rows", "Pack rows of intervals into token shards"));
  setup_context(app.add_subcommand("context", "Perplexity of an order-k context model, a floor for trained models"));
  setup_kmers(app.add_subcommand("kmers", "Logistic regression on counts of 3-, 5- and 6-mers, a floor for classifiers"));
}

}  // namespace dna_command

const Command command_dna{"dna", "DNA: rows of training data, and floors to compare models with", dna_command::setup};

}  // namespace based::apps
