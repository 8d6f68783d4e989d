#include "weft/train/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "weft/base/error.h"
#include "weft/train/report_html.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() : dir_(::testing::TempDir() + "weft_report_" + std::to_string(getpid()) + "/my-run") {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_ + "/samples");
  }
  ~ReportTest() override { std::filesystem::remove_all(std::filesystem::path(dir_).parent_path()); }
  void put(const std::string& name, const std::string& text) { std::ofstream(dir_ + "/" + name) << text; }

  std::string dir_;
};

TEST_F(ReportTest, ShowsCurvesTilesHeatMapAndSamples) {
  put("metrics.jsonl",
      R"({"step":1,"wall_time":10,"reward/mean":0.25,"parity/max_abs_diff":0,"timing_s/gen":1,"timing_s/step":2,"moe/load/0/0":0.75,"moe/load/0/1":0.25,"odd":3}
{"step":2,"wall_time":75,"reward/mean":0.5,"parity/max_abs_diff":0,"timing_s/gen":1.5,"val/a/b/mean@1":0.75,"odd":null}
)");
  put("recipe.toml", "[model]\npath = \"some/model\"\n");
  put("samples/9.jsonl", "{\"input\": \"old\", \"output\": \"old\"}\n");
  put("samples/10.jsonl",
      R"({"input": "What?", "output": "ab", "score": 1, "gts": "42", "finish_reason": "stop", "tokens": ["a", "b"], "rollout_log_probs": [-0.5, -9]})"
      "\n");
  write_report(dir_);
  std::ifstream in(dir_ + "/report.html");
  const std::string html((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(html, render_report(dir_));
  for (const char* text :
       {"my-run", "some/model", "1m 05s", "0.25 \u2192 0.5", "bit for bit, 2 of 2 steps", "Time per phase", "Expert load",
        "1.50x the even share", "All other metrics", "step 10 <small>1 of 1", "--a:0.12", "--a:1.00", "expected 42"})
    EXPECT_THAT(html, HasSubstr(text));
  EXPECT_LT(html.find("step 10 <small>"), html.find("step 9 <small>"));
  for (const char* outside : {"http://", "https://", "src=", "@import", "url("}) EXPECT_THAT(html, Not(HasSubstr(outside)));
}

TEST_F(ReportTest, HostileTextIsEscaped) {
  put("metrics.jsonl", "{\"step\":1,\"<script>x\":1,\"reward/'\\\"><img>/mean\":1,\"reward/b/mean\":1}\n");
  put("samples/1.jsonl",
      R"({"input": "</pre><script>alert(1)</script>", "output": "x", "gts": {"a": "<b>"}, "tokens": ["<i>"], "rollout_log_probs": [-1], "rewards": {"<u>": 1, "v": null}, "finish_reason": "<q>"}
{"input": 5, "output": ["x"], "tokens": [1], "rollout_log_probs": ["x"], "score": "y"}
[1]
)");
  const std::string html = render_report(dir_);
  for (const char* tag : {"<script>x", "<script>alert", "<img>", "<b>\"", "<i>&", "<u>", "<q>"})
    EXPECT_THAT(html, Not(HasSubstr(tag)));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
}

TEST_F(ReportTest, NeedsMetricsAndRefusesMalformedFiles) {
  EXPECT_ANY_THROW(render_report(dir_));
  put("metrics.jsonl", "{\"step\":1}\n");
  EXPECT_THAT(render_report(dir_), HasSubstr("my-run"));
  put("samples/1.jsonl", "{\"input\": \n");
  EXPECT_THROW(render_report(dir_), FileError);
}

TEST(Report, ChartsTakeAnySeries) {
  const double inf = INFINITY;
  EXPECT_EQ(line_chart("t", "", {}), "");
  EXPECT_EQ(line_chart("t", "", {{"a", {}}}), "");
  for (const std::vector<MetricsHistory::Point>& points :
       std::vector<std::vector<MetricsHistory::Point>>{{{1, 0}},
                                                       {{1, -5}},
                                                       {{1, NAN}},
                                                       {{1, inf}, {2, 1}},
                                                       {{0, 1e300}, {1, -1e300}},
                                                       {{5, 1e-300}, {6, 0}},
                                                       {{1, 3}, {2, 3}}}) {
    for (const std::string& html : {line_chart("t", "", {{"a", points}}), stacked_chart("t", "", {{"a", points}})}) {
      EXPECT_THAT(html, HasSubstr("</svg>"));
      EXPECT_THAT(html, Not(HasSubstr("nan")));
      EXPECT_THAT(html, Not(HasSubstr("inf")));
    }
  }
}

TEST(Report, LongSeriesAreAveragedInBuckets) {
  std::vector<MetricsHistory::Point> points;
  for (int64_t i = 0; i < 100000; ++i) points.push_back({i, static_cast<double>(i % 2)});
  const std::string html = line_chart("t", "", {{"a", points}});
  EXPECT_LT(html.size(), 40000u);
  EXPECT_THAT(html, HasSubstr("&quot;0.5&quot;"));
}

}  // namespace
}  // namespace weft
