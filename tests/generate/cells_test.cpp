// Sequences that are read in cells. The bits of an invariant engine's results depend on the tokens and the model alone, not on how the
// tokens arrived.
#include "based/generate/cells.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <random>

#include "based/core/state_file.h"
#include "based/generate/session.h"
#include "tests/core/temporary_folder.h"
#include "tests/generate/texts.h"

namespace based {
namespace cells_test {

constexpr const char* kHash = "00112233445566778899aabbccddeeff";
constexpr int64_t kCell = cell_tokens(torch::kCPU);

std::vector<std::string> recurrent_mixers() {
  std::vector<std::string> names;
  for (const MixerInfo& info : mixers())
    if (info.recurrent) names.emplace_back(info.name);
  return names;
}

std::shared_ptr<LanguageModel> model_of(const std::string& mixer, torch::Dtype dtype, torch::Device device = torch::kCPU) {
  ModelConfig config;
  config.d_model = 64, config.mlp_width = 96, config.layers = {mixer, mixer};
  auto model = make_model(config, 11);
  model->to(dtype);
  model->to(device);
  model->eval();
  return model;
}

using Ids = std::vector<int64_t>;
Ids part(const Ids& text, int64_t from, int64_t to) { return {text.begin() + from, text.begin() + to}; }

// The continuation of a sequence: sampled tokens, their log-probabilities, and the state after them.
struct Given {
  Ids ids;
  std::vector<float> log_probabilities;
  SequenceState state;
};

std::string difference(const Given& a, const Given& b) {
  if (a.ids != b.ids) return "other tokens";
  if (a.log_probabilities != b.log_probabilities) return "other log-probabilities";
  if (a.state.ids != b.state.ids || a.state.cells != b.state.cells) return "states of other texts or cells";
  const auto of_a = a.state.state.named(), of_b = b.state.state.named();
  if (of_a.size() != of_b.size()) return "states of other sizes";
  for (size_t i = 0; i < of_a.size(); ++i)
    if (!torch::equal(of_a[i].value, of_b[i].value)) return "another " + of_a[i].name;
  return "";
}

// An engine with one sequence under test and others in the remaining slots.
struct Reader {
  Engine engine;
  int64_t sequence = -1;

  Reader(LanguageModel& model, int64_t slots, int64_t cache_tokens, Steps steps = Steps::fused, bool ahead = false)
      : engine(model, {.slots = slots,
                       .cache_tokens = cache_tokens,
                       .ahead = ahead,
                       .decode = {.steps = steps, .invariant = true, .log_probabilities = true}}) {
    for (int64_t i = 1; i < slots; ++i) engine.add(some_text(5 + 70 * i, i), {.sampling = kDrawn});
  }
  void draw(Given& given, int64_t tokens) {
    const size_t wanted = given.ids.size() + static_cast<size_t>(tokens);
    while (given.ids.size() < wanted)
      for (const Engine::Output& drawn : engine.step()) {
        if (drawn.sequence != sequence) continue;
        ASSERT_GE(drawn.token, 0) << finish_name(drawn.finish);
        given.ids.push_back(drawn.token);
        given.log_probabilities.push_back(drawn.log_probability);
      }
  }
  Given draw(int64_t tokens) {
    Given given;
    draw(given, tokens);
    given.state = engine.snapshot(sequence);
    return given;
  }
};

const SequenceOptions kOn{.sampling = kDrawn};
constexpr int64_t kDraws = kCell / 2 + 9;  // for half of the prompt lengths, a cell ends within these

Given of_whole_text(LanguageModel& model, const Ids& text) {
  Reader reader(model, 1, 0);
  reader.sequence = reader.engine.add(text, kOn);
  return reader.draw(kDraws);
}

class InCells : public testing::TestWithParam<std::tuple<std::string, torch::Dtype>> {
 protected:
  std::shared_ptr<LanguageModel> model_ = model_of(std::get<0>(GetParam()), std::get<1>(GetParam()));
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Mixers, InCells,
                         testing::Combine(testing::ValuesIn(recurrent_mixers()),
                                          testing::Values(torch::kFloat32, torch::kBFloat16, torch::kFloat64)),
                         [](const auto& given) { return std::get<0>(given.param) + "_" + torch::toString(std::get<1>(given.param)); });

// The pieces arrive through state files, forks and extend(), in engines with and without pages, alone and beside other sequences. fp32
// takes three rounds, the other types one, with pages for one of the lengths.
TEST_P(InCells, ATextInAnyPiecesGivesTheBitsOfTheWholeText) {
  std::mt19937 random(7);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  const int rounds = model_->dtype() == torch::kFloat32 ? 3 : 1;
  for (const int64_t length : {3 * kCell + 1, 3 * kCell, 2 * kCell + 37, kCell - 3}) {
    const Ids text = some_text(length, 9);
    const Given whole = of_whole_text(*model_, text);
    for (int round = 0; round < rounds; ++round) {
      std::string how;
      const bool pages = rounds == 1 ? length == 3 * kCell : round == 2;
      auto reader = std::make_unique<Reader>(*model_, 1 + (round + length) % 3, pages ? 2000 : 0);
      int64_t at = 1 + below(length), seen = 0;
      reader->sequence = reader->engine.add(part(text, 0, at), kOn);
      while (at < length) {
        const int64_t next = at + 1 + below(length - at), way = below(3);
        how += std::to_string(at) + (way == 0 ? " file " : way == 1 ? " fork " : " extend ");
        seen = std::max(seen, (at - 1) / kCell * kCell);
        for (const int64_t to = seen + below(at - seen); seen < to; ++seen) reader->engine.step();  // these steps read given tokens
        if (way == 2) {
          reader->engine.extend(reader->sequence, part(text, at, next));
        } else {
          SequenceState state = reader->engine.snapshot(reader->sequence);
          if (way == 0) {
            save_sequence(folder_.file("a"), state, kHash);
            state = load_sequence(folder_.file("a"), *model_, kHash);
            reader = std::make_unique<Reader>(*model_, 1 + below(3), below(2) * 2000);
          } else {
            reader->engine.remove(reader->sequence);
          }
          state.ids.insert(state.ids.end(), text.begin() + at, text.begin() + next);
          seen = 0;
          reader->sequence = reader->engine.add(std::move(state), kOn);
        }
        at = next;
      }
      EXPECT_EQ(difference(reader->draw(kDraws), whole), "") << length << " tokens, " << how;
    }
  }
}

// Prompts and answers alternate, and cells end in both. The sequence is saved and restored in between. At the end, all of it is read as one
// prompt.
TEST_P(InCells, AConversationGivesTheBitsOfItsTranscript) {
  for (const int64_t first : {kCell - 20, kCell + 30}) {
    auto reader = std::make_unique<Reader>(*model_, 2, first > kCell ? 2000 : 0);
    reader->sequence = reader->engine.add(some_text(first, 3), kOn);
    for (const int64_t more : {int64_t{11}, kCell + 5, int64_t{1}}) {
      Given answer;
      reader->draw(answer, 25);
      save_sequence(folder_.file("a"), reader->engine.snapshot(reader->sequence), kHash);
      if (more == 1) {
        reader = std::make_unique<Reader>(*model_, 3, 0);
        reader->sequence = reader->engine.add(load_sequence(folder_.file("a"), *model_, kHash), kOn);
        reader->draw(answer, 30);
      }
      reader->engine.extend(reader->sequence, some_text(more, 40));
    }
    const Ids transcript = reader->engine.text(reader->sequence);
    EXPECT_EQ(difference(reader->draw(kDraws), of_whole_text(*model_, transcript)), "") << first;
  }
}

// An answer that is sampled in turns of three tokens has the bits of one that is sampled at once, at every offset within a cell.
TEST(Cells, AnAnswerBrokenOffAnywhereGoesOnWithTheSameBits) {
  for (const char* preset : {"based-tiny", "attn-tiny"}) {
    const auto model = distinct_model(torch::kCPU, preset);
    const Ids prompt = some_text(kCell - 5, 9);
    Reader whole(*model, 1, 0);
    whole.sequence = whole.engine.add(prompt, kOn);
    Given expected;
    whole.draw(expected, 2 * kCell);
    SequenceState state{prompt, model->make_state(1), ""};
    Given given;
    for (int64_t i = 0; i < 2 * kCell; i += 3) {
      Reader reader(*model, 1, 0);
      reader.sequence = reader.engine.add(std::move(state), kOn);
      reader.draw(given, std::min<int64_t>(3, 2 * kCell - i));
      state = reader.engine.snapshot(reader.sequence);
    }
    EXPECT_EQ(given.ids, expected.ids) << preset;
    EXPECT_EQ(given.log_probabilities, expected.log_probabilities) << preset;
    given.state = state, expected.state = whole.engine.snapshot(whole.sequence);
    EXPECT_EQ(difference(given, expected), "") << preset;
  }
}

// Only the tokens are used of a state that was not made in cells, or in those of another type or device.
TEST(Cells, AStateThatWasNotMadeInTheseCellsIsReadAgain) {
  const TemporaryFolder folder;
  const auto model = distinct_model(torch::kCPU);
  const Ids text = some_text(2 * kCell + 20, 9);
  const Given whole = of_whole_text(*model, text);
  Session plain(*model);
  plain.append(part(text, 0, kCell + 1));  // at the begin of a cell, by chance
  plain.save(folder.file("plain"), kHash);
  Session invariant(*model, {.decode = {.invariant = true}});
  invariant.append(part(text, 0, kCell + 1));
  invariant.save(folder.file("cells"), kHash);
  SequenceState of_cells = load_sequence(folder.file("cells"), *model, kHash);
  EXPECT_EQ(of_cells.cells, "64 tokens, F32, cpu");
  SequenceState of_others = load_sequence(folder.file("cells"), *model, kHash);
  of_others.cells = "512 tokens, BF16, cuda";
  for (SequenceState* state : {&of_cells, &of_others}) {
    const bool taken = state == &of_cells;
    state->ids = text;
    Reader reader(*model, 1, 0);
    reader.sequence = reader.engine.add(std::move(*state), kOn);
    reader.engine.read();
    EXPECT_EQ(reader.engine.tokens_read(), taken ? kCell : 2 * kCell);
    EXPECT_EQ(difference(reader.draw(kDraws), whole), "") << taken;
  }
  SequenceState of_plain = load_sequence(folder.file("plain"), *model, kHash);
  EXPECT_EQ(of_plain.cells, "");
  of_plain.ids = text;
  Reader reader(*model, 1, 0);
  reader.sequence = reader.engine.add(std::move(of_plain), kOn);
  EXPECT_EQ(difference(reader.draw(kDraws), whole), "");
}

// An engine without cells continues from such a state as from any other: it reads the tokens that the state has not seen.
TEST(Cells, AStateMadeInCellsGoesOnInEveryEngine) {
  const TemporaryFolder folder;
  for (const char* preset : {"based-tiny", "attn-tiny"}) {
    const auto model = distinct_model(torch::kCPU, preset);
    const Ids text = some_text(kCell + 30, 9);
    Session invariant(*model, {.decode = {.invariant = true}});
    invariant.append(text);
    invariant.save(folder.file("a"), kHash);
    Session plain(*model);
    plain.load(folder.file("a"), kHash);
    EXPECT_EQ(plain.ids(), text);
    Ids ids;
    for (int i = 0; i < 20; ++i) ids.push_back(plain.next(kGreedy));
    EXPECT_EQ(ids, greedy_text(*model, text, 20)) << preset;
  }
}

TEST(Cells, AStateThatIsNotAtTheBeginOfACellIsRefused) {
  const TemporaryFolder folder;
  const auto model = distinct_model(torch::kCPU);
  Session plain(*model);
  plain.append(some_text(kCell + 30, 9));
  plain.save(folder.file("plain"), kHash);
  SequenceState state = load_sequence(folder.file("plain"), *model, kHash);
  state.cells = describe_cells(*model);
  save_sequence(folder.file("a"), state, kHash);
  EXPECT_EQ(message_of<Error>([&] { load_sequence(folder.file("a"), *model, kHash); }),
            folder.file("a") + ": the state has seen 93 tokens, which is not at the begin of a cell of 64");
  Reader reader(*model, 1, 0);
  EXPECT_EQ(message_of<Error>([&] { reader.engine.add(state, {}); }),
            "a state that has seen 93 tokens, which is not at the begin of a cell of 64");
}

// The scores are the same whether the tokens were given at once or in pieces, and close to those of an engine without cells.
TEST(Cells, ScoresDependOnTheTextAlone) {
  const auto model = distinct_model(torch::kCPU);
  const Ids text = some_text(2 * kCell + 20, 9);
  const SequenceOptions scored{.sampling = kGreedy, .scores = true};
  const auto scores = [&](bool invariant, const std::vector<int64_t>& cuts) {
    Engine engine(*model, {.decode = {.invariant = invariant}});
    int64_t at = cuts[0];
    const int64_t sequence = engine.add(part(text, 0, at), scored);
    for (size_t i = 1; i < cuts.size(); at = cuts[i++]) {
      engine.read();
      engine.extend(sequence, part(text, at, cuts[i]));
    }
    engine.read();
    return engine.scores(sequence);
  };
  const auto length = static_cast<int64_t>(text.size());
  const std::vector<float> whole = scores(true, {length}), plain = scores(false, {length});
  ASSERT_EQ(whole.size(), plain.size());
  EXPECT_TRUE(torch::allclose(torch::tensor(whole), torch::tensor(plain), 1e-4, 1e-4));
  EXPECT_EQ(scores(true, {10, kCell - 1, kCell, kCell + 1, 2 * kCell + 3, length}), whole);
  EXPECT_EQ(scores(true, {kCell + 40, length}), whole);
}

// Another sequence holds the cache space that the tokens after the last whole cell need; they are read once it is free.
TEST(Cells, GivenTokensWaitForRoomInTheCache) {
  const auto model = distinct_model(torch::kCPU, "attn-tiny");
  const Ids text = some_text(20, 9), more = some_text(30, 50);
  Engine engine(*model, {.slots = 2, .cache_tokens = 100, .decode = {.invariant = true}});
  const int64_t other = engine.add(some_text(60, 3), {.sampling = kGreedy, .max_tokens = 5});
  const int64_t sequence = engine.add(text, {.sampling = kGreedy, .max_tokens = 4});
  tokens_of(engine, 21);  // the sequence gets two tokens
  Ids all = engine.text(sequence);
  ASSERT_EQ(all.size(), 22U);
  engine.extend(sequence, more);
  all.insert(all.end(), more.begin(), more.end());
  const auto tokens = tokens_of(engine);
  EXPECT_EQ(engine.finish(other), Finish::length);
  EXPECT_EQ(engine.finish(sequence), Finish::length);
  EXPECT_EQ(tokens.at(sequence), greedy_text(*model, all, 2));
}

// A step that is launched ahead does not continue beyond the end of a cell before the parallel form has read the cell.
TEST(Cells, StepsAheadAndOfAnyKindGiveTheSameBits) {
  std::vector<torch::Device> devices{torch::kCPU};
  if (torch::cuda::is_available()) devices.emplace_back(torch::kCUDA);
  for (const torch::Device device : devices)
    for (const std::string mixer : {"taylor_attention", "sliding_window", "attention"}) {
      const auto model = model_of(mixer, torch::kFloat32, device);
      const int64_t cell = cell_tokens(device.type()), first = cell - 10;
      for (const Steps steps : {Steps::fused, Steps::plain})
        for (const bool ahead : {false, true})
          for (const int64_t slots : {1, 4}) {
            Reader reader(*model, slots, 20 * cell, steps, ahead), whole(*model, 1, 20 * cell, steps);
            reader.sequence = reader.engine.add(some_text(first, 5), kOn);
            Given answer, expected, given;
            reader.draw(answer, 30);
            reader.engine.extend(reader.sequence, some_text(cell, 70));
            const Ids transcript = reader.engine.text(reader.sequence);
            reader.draw(answer, static_cast<int64_t>(transcript.size()) - cell - first - 30);  // tokens of the step in flight
            reader.draw(given, 40);
            whole.sequence = whole.engine.add(transcript, kOn);
            whole.draw(expected, 40);
            EXPECT_EQ(given.ids, expected.ids) << mixer << " on " << device << (ahead ? ", ahead" : "");
            EXPECT_EQ(given.log_probabilities, expected.log_probabilities) << mixer << " on " << device << (ahead ? ", ahead" : "");
          }
    }
}

}  // namespace cells_test
}  // namespace based
