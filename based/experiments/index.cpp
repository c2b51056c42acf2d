// The kind "index": the index problem with a trained recurrent model. Alice reads her bits with the model and sends its state. Bob, who has
// only the message, continues from that state and answers a question about each bit. The figure plots Bob's accuracy against the bits sent,
// next to the upper bound for any message of that many bits.
#include "based/core/text_table.h"
#include "based/data/index_problem.h"

#include "based/experiments/experiment.h"
#include "based/experiments/message.h"
#include "based/experiments/questions.h"

namespace based {
namespace {

struct IndexSegment {
  int64_t told = 64, examples = 1000;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("told", told, "number of bits that Alice reads, chosen at random; Bob is asked for each of them");
    field("examples", examples, "examples");
  }
};

struct IndexTask {
  int64_t bits = 64, test = 256, seed = 0;
  std::vector<IndexSegment> train;
  std::vector<int64_t> bits_each = {32, 16, 8, 4, 2};

  template <class Visitor>
  void visit(Visitor&& field) {
    field("bits", bits, "n: the number of Alice's bits");
    field("train", train, "training segments; segments with few told bits are easier to learn");
    field("test", test, "number of test examples, with all bits told and all asked for");
    field("seed", seed, "seed of the data");
    field("bits_each", bits_each, "bits per number of the state in a message: 32, 16, or 8 to 2; each value is a point of the figure");
  }
};

struct IndexFigures {
  std::vector<double> message_bits, message_recall;

  template <class Visitor>
  void visit(Visitor&& field) {
    field("message_bits", message_bits, "length of the message, for each of bits_each");
    field("message_recall", message_recall, "recall from the message, for each of bits_each");
  }
};

using IndexSummary = QuestionsSummary<IndexTask>;

// The hidden states [tokens, d_model] of one piece of the data: zeros for Alice's tokens, then Bob's. `bits` receives a message's length.
torch::Tensor answer(LanguageModel& model, const RecallPiece& piece, const IndexTask& task, int bits_each, int64_t& bits) {
  const int64_t length = piece.segment->length, told = 2 * task.bits;
  const torch::Tensor ids = piece.segment->inputs.narrow(0, piece.first, piece.count);
  const auto part = [&](int64_t first, int64_t count, ModelState& state) {
    const Slots slots = torch::arange(piece.count, torch::dtype(torch::kInt64).device(model.device()));
    return model.prefill(ids.narrow(1, first, count).flatten(), Sequences::equal(piece.count, count, model.device()), state, slots);
  };
  ModelState alice = model.make_state(piece.count), bob = model.make_state(piece.count);
  part(0, told, alice);
  for (int64_t slot = 0; slot < piece.count; ++slot) {
    const ModelState one = alice.extract(slot);
    const StateMessage message = write_message(one, bits_each);
    bits = message.bits;
    bob.insert(read_message(message, one, bits_each), slot);
  }
  const torch::Tensor hidden = part(told, length - told, bob);
  return torch::cat({torch::zeros({piece.count, told, hidden.size(1)}, hidden.options()),
                     hidden.view({piece.count, length - told, hidden.size(1)})},
                    1)
      .flatten(0, 1);
}

std::string times(int64_t count, const char* what) { return std::to_string(count) + " " + what; }

// The highest recall of any message, for messages of `least` to `most` bits.
PlotSeries bound_of(const IndexTask& task, double least, double most) {
  PlotSeries bound{.label = "no message can do better", .markers = false, .backdrop = true};
  constexpr int kPoints = 60;
  for (int i = 0; i <= kPoints; ++i) {
    const double bits = least * std::pow(most / least, i / static_cast<double>(kPoints));
    bound.points.emplace_back(bits, most_recall(bits, static_cast<double>(task.bits)));
  }
  return bound;
}

struct IndexKind {
  using Task = IndexTask;
  static constexpr const char *kName = "index", *kTitle = "Recall against the bits of the message";
  static constexpr int64_t kVersion = index_version;
  static constexpr bool kAgainstParameters = false;

  static std::vector<IndexConfig> configs(const Task& task, bool test) {
    constexpr int64_t kApart = 1'000'000;  // distance between the seeds of training and test data, and half that of two tasks
    int64_t seed = task.seed * 2 * kApart;
    if (test) return {{task.bits, task.bits, task.bits, task.test, seed + kApart}};
    std::vector<IndexConfig> all;
    for (const IndexSegment& segment : task.train) all.push_back({task.bits, segment.told, segment.told, segment.examples, seed++});
    return all;
  }
  static void check(const Task& task) {
    if (task.seed < 0 || task.seed > 1'000'000'000) throw UsageError("task.seed must be from 0 to 10^9, got " + std::to_string(task.seed));
    if (task.bits_each.empty()) throw UsageError("task.bits_each must not be empty");
    for (const int64_t bits : task.bits_each)
      if (bits < 2 || bits > 32 || !message_width(static_cast<int>(bits)))
        throw UsageError("task.bits_each must be 32, 16, or 2 to 8, got " + std::to_string(bits));
    for (const bool test : {false, true})
      for (const IndexConfig& config : configs(task, test)) check_index(config);
  }
  static int64_t vocab_size(const Task& task) { return configs(task, true).front().vocab_size(); }
  static std::vector<QuestionSegment> segments(const Task& task, bool test) {
    std::vector<QuestionSegment> all;
    for (const IndexConfig& config : configs(task, test)) all.push_back({config.length(), config.examples});
    return all;
  }
  static MqarSegments make(const Task& task) {
    MqarSegments made;
    for (const bool test : {false, true})
      for (const IndexConfig& config : configs(task, test)) (test ? made.test : made.train).push_back(make_index(config));
    return made;
  }

  using Measured = IndexFigures;
  static Measured measure(LanguageModel& model, const RecallData& data, const Task& task) {
    constexpr int64_t kAtOnce = 32;
    Measured measured;
    const auto pieces = recall_pieces(data.test().front(), kAtOnce);
    for (const int64_t bits_each : task.bits_each) {
      int64_t bits = 0;
      const auto read = [&](const RecallPiece& piece) { return answer(model, piece, task, static_cast<int>(bits_each), bits); };
      measured.message_recall.push_back(measure_recall(model, {pieces}, read).mean);
      measured.message_bits.push_back(static_cast<double>(bits));
    }
    return measured;
  }
  static void check_measured(const Task& task, const Measured& measured, const std::string& where) {
    for (const auto& [name, figures, least, most] :
         {std::tuple{"message_bits", &measured.message_bits, 1.0, 0x1p53}, {"message_recall", &measured.message_recall, 0.0, 1.0}}) {
      require_count(where, name, figures->size(), task.bits_each.size());
      for (const double figure : *figures) require_figure(where, std::string("a figure of ") + name, figure, least, most);
    }
  }

  static std::vector<Figure> figures(const IndexSummary& summary, const std::vector<PointResult>& points) {
    Plot plot;
    plot.title = summary.title;
    plot.subtitle = times(summary.task.bits, "random bits, for each of which the receiver is asked; the message is the model's state");
    plot.x = {"bits of the message", true, TickFormat::powers_of_two, {}, {}};
    plot.y = {"recall", false, TickFormat::percent, 0.4, 1.0};
    int64_t examples = 0;
    for (const IndexSegment& segment : summary.task.train) examples += segment.examples;
    plot.footer = times(examples, "examples") + " x " + times(summary.training.epochs, "epochs") + "; numbers of the state sent in 32 to " +
                  std::to_string(*std::min_element(summary.task.bits_each.begin(), summary.task.bits_each.end())) + " bits each";
    double most = static_cast<double>(summary.task.bits);
    for (const PointResult& point : points) {
      if (point.best.empty()) continue;
      if (plot.series.empty() || plot.series.back().label != point.series) plot.series.push_back({.label = point.series, .line = false});
      const StoredRun& run = *point.best.front();
      const std::vector<double> bits = figures_of(run, "message_bits"), recall = figures_of(run, "message_recall");
      for (size_t i = 0; i < std::min(bits.size(), recall.size()); ++i) {
        plot.series.back().points.emplace_back(bits[i], recall[i]);
        most = std::max(most, bits[i]);
      }
      if (!bits.empty() && !recall.empty() && !point.label.empty()) plot.notes.push_back({bits.front(), recall.front(), point.label});
    }
    if (plot.series.empty()) return {};
    plot.labels_at_end = true;
    plot.series.push_back(bound_of(summary.task, 1, most));
    return {{"figure", plot}};
  }

  static std::string table(const IndexSummary& summary, const std::vector<PointResult>& points) {
    std::string text = "# " + markdown(summary.title) + "\n\n" + times(summary.task.bits, "bits, each of which is asked for.") +
                       " The bound is the most that a message of so many bits lets anyone answer.\n\n"
                       "| series | point | bits each | message bits | recall | bound | learning rate | parameters |\n"
                       "|---|---|---:|---:|---:|---:|---:|---:|\n";
    for (const PointResult& point : points) {
      if (point.best.empty()) {
        text += "| " + point.series + " | " + point.label + " | - | - | - | - | - | - |\n";
        continue;
      }
      const StoredRun& run = *point.best.front();
      const std::vector<double> bits = figures_of(run, "message_bits"), recall = figures_of(run, "message_recall");
      for (size_t i = 0; i < std::min({bits.size(), recall.size(), summary.task.bits_each.size()}); ++i)
        text += "| " + markdown(point.series) + " | " + markdown(point.label) + " | " + std::to_string(summary.task.bits_each[i]) + " | " +
                format_number(bits[i], 0) + " | " + format_number(recall[i], 4) + " | " +
                format_number(most_recall(bits[i], static_cast<double>(summary.task.bits)), 4) + " | " +
                format_number(point.learning_rate, 5) + " | " + std::to_string(point.planned->parameters) + " |\n";
    }
    return text;
  }
};

}  // namespace

BASED_QUESTIONS_KIND(index, IndexKind, "The index problem: recall from a state against the bits that it is sent in")

}  // namespace based
