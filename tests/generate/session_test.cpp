#include "based/generate/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "based/core/files.h"
#include "based/core/state_file.h"
#include "based/generate/text_stream.h"
#include "based/models/weights.h"
#include "tests/core/temporary_folder.h"

namespace based {
namespace session_test {

std::shared_ptr<LanguageModel> tiny(const std::string& preset) {
  torch::manual_seed(5);
  auto model = std::make_shared<LanguageModel>(find_preset(preset));
  model->eval();
  return model;
}

std::vector<int64_t> continue_text(Session& session, int64_t tokens) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(session.next({}));
  return ids;
}

class EveryModel : public testing::TestWithParam<const char*> {};

TEST_P(EveryModel, GoesOnFromASavedStateAsIfItHadNeverStopped) {
  const TemporaryFolder folder;
  const auto model = tiny(GetParam());
  const std::string path = folder.file("a.state");
  Session whole(*model);
  whole.append({1, 2, 3, 4, 5, 6, 7, 8, 9});
  continue_text(whole, 5);
  whole.save(path, "00112233445566778899aabbccddeeff");
  const std::vector<int64_t> wanted = continue_text(whole, 20);

  Session other(*model);
  other.append({100, 101});  // load() must replace these tokens
  other.load(path, "00112233445566778899aabbccddeeff");
  EXPECT_EQ(other.ids().size(), 14U);
  EXPECT_EQ(continue_text(other, 20), wanted);
}

TEST_P(EveryModel, AStateOfAnotherModelOrADamagedOneIsRefusedAndTheSessionStays) {
  const TemporaryFolder folder;
  const auto model = tiny(GetParam());
  Session session(*model);
  session.append({1, 2, 3});
  const std::string path = folder.file("a.state");
  session.save(path, "00112233445566778899aabbccddeeff");
  Session other(*model);
  other.append({4, 5});
  EXPECT_THROW(other.load(path, "ffffffffffffffffffffffffffffffff"), Error);
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file_atomic(path, bytes);
  EXPECT_THROW(other.load(path, "00112233445566778899aabbccddeeff"), Error);
  EXPECT_EQ(other.ids(), (std::vector<int64_t>{4, 5}));
}

// Files with one wrong field each and a correct checksum.
TEST_P(EveryModel, ACraftedStateIsRefusedAndTheSessionStays) {
  const TemporaryFolder folder;
  const auto model = tiny(GetParam());
  const std::string path = folder.file("a.state"), crafted = folder.file("crafted.state"), hash = "00112233445566778899aabbccddeeff";
  Session session(*model), other(*model);
  session.append({1, 2, 3, 4, 5, 6, 7, 8, 9});
  session.save(path, hash);
  other.append({4, 5});
  const StateFile file(path);
  const auto message = [&](const StateSnapshot& snapshot) {
    write_state_file(crafted, snapshot);
    return message_of<Error>([&] { other.load(crafted, hash); });
  };
  const auto refuses = [&](const StateSnapshot& snapshot, const std::string& what) {
    EXPECT_NE(message(snapshot), "") << what;
    EXPECT_EQ(other.ids(), (std::vector<int64_t>{4, 5})) << what;
  };
  const StateSnapshot& whole = file.snapshot();
  const std::vector<StateTensor> known = model->make_state(1).named();
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const TensorView& tensor = whole.tensors[i];
    StateSnapshot changed = whole;
    TensorView& view = changed.tensors[i];
    view.name += "x";
    refuses(changed, tensor.name + " renamed");
    (view = tensor).shape.push_back(1);
    refuses(changed, tensor.name + " with a dimension more");
    (view = tensor).dtype = tensor.dtype == DType::I64 ? DType::F64 : DType::I32;
    refuses(changed, tensor.name + " of another type");
    changed.tensors.erase(changed.tensors.begin() + static_cast<int64_t>(i));
    refuses(changed, tensor.name + " absent");
    // Values outside 0 to 8: a state may have seen any number of the tokens before the last one.
    for (const int64_t value : {int64_t{-1}, int64_t{9}, int64_t{1} << 40, INT64_MAX, INT64_MIN}) {
      if (tensor.dtype != DType::I64) break;
      changed = whole;
      changed.tensors[i].bytes = std::as_bytes(std::span(&value, 1));
      refuses(changed, tensor.name + " = " + std::to_string(value));
    }
    for (const int64_t steps : {0, 1, 7}) {
      if (!known[i].grows) break;
      changed = whole;
      TensorView& cut = changed.tensors[i];
      cut.bytes = cut.bytes.first(cut.bytes.size() / static_cast<size_t>(cut.shape[1]) * static_cast<size_t>(steps));
      cut.shape[1] = steps;
      refuses(changed, tensor.name + " of " + std::to_string(steps) + " steps");
    }
  }
  for (const std::vector<int64_t>& ids : {std::vector<int64_t>{}, {1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 3, 4, 5, 6, 7, 8, 257}}) {
    StateSnapshot changed = whole;
    changed.token_ids = ids;
    refuses(changed, std::to_string(ids.size()) + " tokens");
  }
  StateSnapshot longer = whole;  // tokens that the state has not seen are read
  longer.token_ids.push_back(10);
  EXPECT_EQ(message(longer), "");
  EXPECT_EQ(other.next(SamplingOptions{0}), [&] {
    Session all(*model);
    all.append(longer.token_ids);
    return all.next(SamplingOptions{0});
  }());
  EXPECT_EQ(message(whole), "") << "unchanged it is taken";
  EXPECT_EQ(other.ids(), session.ids());
}

// Older state files have a token count for each layer with a ring or a cache; here every layer gets one.
TEST_P(EveryModel, AStateWithCountsOfLayersIsTakenWhereTheyAgree) {
  const TemporaryFolder folder;
  const auto model = tiny(GetParam());
  const std::string path = folder.file("a.state"), older = folder.file("older.state"), hash = "00112233445566778899aabbccddeeff";
  Session session(*model);
  session.append({1, 2, 3, 4, 5, 6, 7, 8, 9});
  session.save(path, hash);
  const StateFile file(path);
  const auto write = [&](const int64_t& count) {
    StateSnapshot snapshot = file.snapshot();
    ASSERT_EQ(snapshot.tensors.front().name, "position");
    for (const TensorView& tensor : snapshot.tensors) ASSERT_TRUE(tensor.name == "position" || !tensor.name.ends_with(".position"));
    for (int64_t layer = 0; layer < model->layers(); ++layer) {
      TensorView view = snapshot.tensors.front();
      view.name = "layers." + std::to_string(layer) + ".position", view.bytes = std::as_bytes(std::span(&count, 1));
      const auto next = std::find_if(snapshot.tensors.begin(), snapshot.tensors.end(), [&](const TensorView& tensor) {
        return tensor.name.starts_with("layers." + std::to_string(layer + 1) + ".");
      });
      snapshot.tensors.insert(next, view);
    }
    write_state_file(older, snapshot);
  };
  const int64_t right = 8, wrong = 7;
  write(right);
  Session other(*model);
  other.load(older, hash);
  EXPECT_EQ(other.ids(), session.ids());
  EXPECT_EQ(other.next(SamplingOptions{0}), session.next(SamplingOptions{0}));
  write(wrong);
  EXPECT_EQ(message_of<Error>([&] { other.load(older, hash); }),
            older + ": state: tensor 'layers.0.position' says another number of tokens than 'position'");
}

TEST_P(EveryModel, APromptInPiecesIsThePromptAtOnce) {
  const auto model = tiny(GetParam());
  Session whole(*model), pieces(*model);
  whole.append({1, 2, 3, 4, 5, 6});
  pieces.append({1, 2});
  pieces.append({});
  pieces.append({3});
  pieces.append({4, 5, 6});
  EXPECT_EQ(whole.ids(), pieces.ids());
  EXPECT_EQ(whole.next(SamplingOptions{0}), pieces.next(SamplingOptions{0}));
}

INSTANTIATE_TEST_SUITE_P(Presets, EveryModel, testing::Values("based-tiny", "attn-tiny"),
                         [](const auto& given) { return std::string(given.param).substr(0, 4); });

TEST(Session, RefusesIdsOutsideTheVocabularyAndAnEmptyText) {
  const auto model = tiny("based-tiny");
  Session session(*model);
  EXPECT_THROW(session.next({}), Error);
  EXPECT_THROW(session.append({257}), Error);
  EXPECT_THROW(session.append({-1}), Error);
}

TEST(Session, SaysWhereLearntPositionsEnd) {
  const TemporaryFolder folder;
  ModelConfig config = find_preset("attn-tiny");
  config.max_positions = 4;
  LanguageModel model(config);
  model.eval();
  Session session(model);
  const auto message = [&](auto run) { return message_of<Error>(run); };
  EXPECT_NE(message([&] {
              session.append({1, 2, 3, 4, 5, 6});
            }).find("5 positions are needed, and the model has learnt 4 (max_positions)"),
            std::string::npos);
  EXPECT_TRUE(session.ids().empty());
  session.append({1, 2, 3, 4});
  EXPECT_NO_THROW(session.next({}));
  EXPECT_NE(message([&] { session.next({}); }).find("max_positions"), std::string::npos);
  EXPECT_EQ(session.ids().size(), 5U);
  session.save(folder.file("a.state"), "x");
  EXPECT_NO_THROW(Session(model).load(folder.file("a.state"), "x"));
}

TEST(TextStream, EndsBeforeAStopStringThatTokensCut) {
  const ByteTokenizer bytes;
  TextStream stream(bytes, {"END", "\n\n"});
  std::string text;
  for (const char c : std::string("one E EN END two")) text += stream.push(static_cast<unsigned char>(c));
  text += stream.finish();
  EXPECT_EQ(text, "one E EN ");
  EXPECT_TRUE(stream.stopped());
}

TEST(TextStream, GivesEverythingWhereNoStopStringCame) {
  const ByteTokenizer bytes;
  TextStream stream(bytes, {"END"});
  std::string text;
  for (const char c : std::string("caf\xC3\xA9 EN")) text += stream.push(static_cast<unsigned char>(c));
  text += stream.finish();
  EXPECT_EQ(text, "caf\xC3\xA9 EN");
  EXPECT_THROW(TextStream(bytes, {""}), UsageError);
}

TEST(Weights, SavedAndLoadedAreEqualAndDisagreementsAreAllListed) {
  const TemporaryFolder folder;
  const auto model = tiny("based-tiny");
  save_model(*model, folder.file("m"));
  const LoadedModel loaded = load_model(folder.file("m"));
  for (const auto& item : model->named_parameters()) EXPECT_TRUE(torch::equal(item.value(), loaded.model->named_parameters()[item.key()]));
  EXPECT_EQ(loaded.hash, load_model(folder.file("m")).hash);
  EXPECT_EQ(load_model(folder.file("m"), torch::kBFloat16).model->dtype(), torch::kBFloat16);

  Config config = Config::parse_json_file(folder.file("m/config.json"));
  config.set("mlp_width", Config(int64_t{32}));
  write_file_atomic(folder.file("m/config.json"), config.to_json());
  try {
    load_model(folder.file("m"));
    FAIL();
  } catch (const Error& error) {
    for (int layer = 0; layer < 3; ++layer)
      EXPECT_NE(std::string(error.what()).find("layers." + std::to_string(layer) + ".mlp.fc1.weight"), std::string::npos) << error.what();
  }
  EXPECT_THROW(load_model(folder.file("nowhere")), Error);
}

}  // namespace session_test
}  // namespace based
