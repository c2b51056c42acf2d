// `based bench decode --compare`: models side by side, as a table, as JSON and as pictures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "based/core/json.h"
#include "tests/apps/program.h"

namespace based {
namespace {

using testing::HasSubstr;

TEST(BenchCompare, MeasuresModelsAtTheSameSizesAndDrawsThem) {
  const TemporaryFolder folder;
  const Ran ran = run("bench decode --compare --quick --json --threads 1 --plot " + folder.file("figures"));
  ASSERT_EQ(ran.code, 0) << ran.err;
  std::map<std::string, std::map<std::pair<int64_t, int64_t>, int64_t>> bytes;  // model, (texts, tokens), of the state
  const Json report = parse_json(ran.out, "output");
  for (const Json& result : report["results"]) {
    EXPECT_GT(result["value"].get<double>(), 0) << result.dump();
    EXPECT_GT(result["floor"].get<double>(), 0) << result.dump();
    EXPECT_EQ(result["unit"], "tokens/s");
    bytes[result["name"].get<std::string>()][{result["batch"].get<int64_t>(), result["context"].get<int64_t>()}] =
        result["state_bytes"].get<int64_t>();
  }
  ASSERT_EQ(bytes.size(), 2U);
  auto &of_based = bytes["decode based-tiny"], &of_attention = bytes["decode attn-tiny"];
  ASSERT_EQ(of_based.size(), of_attention.size());
  EXPECT_EQ((of_based[{4, 64}]), (of_based[{4, 1024}]));
  EXPECT_EQ((of_based[{16, 64}]), 4 * (of_based[{4, 64}]));
  // Two layers of keys and values of width 32 in bf16; a page a text and a few steps beside the texts themselves.
  EXPECT_GE((of_attention[{4, 1024}]), 4 * 1024 * 2 * 2 * 32 * 2);
  EXPECT_LE((of_attention[{4, 1024}]), 4 * (1024 + 128) * 2 * 2 * 32 * 2);
  for (const char* name : {"decode_batch.svg", "decode_context.svg"}) {
    const std::string svg = read_file(folder.file("figures") + "/" + name);
    EXPECT_THAT(svg, HasSubstr("based-tiny"));
    EXPECT_THAT(svg, HasSubstr("attn-tiny"));
    EXPECT_THAT(svg, HasSubstr("tokens per second"));
  }
}

TEST(BenchCompare, KeepsThePicturesThatAreThere) {
  const TemporaryFolder folder;
  write_file_atomic(folder.file("decode_batch.png"), "mine");
  const std::string command = "bench decode --compare --quick --threads 1 --preset based-tiny --plot " + folder.path().string();
  const Ran refused = run(command);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err,
              HasSubstr("--plot " + folder.path().string() +
                        ": holds pictures of a comparison (decode_batch.png); --overwrite replaces that, another --plot keeps it"));
  EXPECT_EQ(read_file(folder.file("decode_batch.png")), "mine");
  EXPECT_EQ(run(command + " --overwrite").code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder.file("decode_batch.svg")));
}

TEST(BenchCompare, PrintsALineASize) {
  const Ran ran = run("bench decode --compare --quick --threads 1 --preset based-tiny");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("based-tiny"));
  EXPECT_THAT(ran.out, HasSubstr("ms/step"));
  EXPECT_EQ(std::count(ran.out.begin(), ran.out.end(), '\n'),
            3 + 5);  // the machine, two heads, three numbers of texts and two more lengths
}

TEST(BenchCompare, RefusesWhatItCannotCompare) {
  for (const char* arguments :
       {"bench --compare", "bench taylor --compare", "bench decode position --compare", "bench decode --plot out",
        "bench decode --preset based-tiny", "bench decode --compare --overwrite", "bench decode --compare --preset based-tine"}) {
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << ran.err;
    EXPECT_FALSE(ran.err.empty()) << arguments;
  }
}

}  // namespace
}  // namespace based
