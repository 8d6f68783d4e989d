#include "weft/base/cores.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace weft {
namespace {

class Cores : public testing::Test {
 protected:
  Cores() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-cores-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
  }
  ~Cores() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text;
  }
  std::string root_;
};

TEST_F(Cores, NoQuotaIsNoLimit) {
  EXPECT_EQ(cgroup_quota("", root_), 0);
  EXPECT_EQ(cgroup_quota("0::/job\n", root_), 0);  // no such directory
  put("job/cpu.max", "max 100000\n");
  EXPECT_EQ(cgroup_quota("0::/job\n", root_), 0);
  put("cpu/job/cpu.cfs_quota_us", "-1\n");
  put("cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_quota("3:cpu:/job\n", root_), 0);
  EXPECT_EQ(cgroup_quota("no cgroup at all", root_), 0);
}

TEST_F(Cores, TheLeastOfAllGroupsAbove) {
  put("slurm/job_7/step_0/cpu.max", "max 100000\n");
  put("slurm/job_7/cpu.max", "250000 100000\n");
  put("slurm/cpu.max", "800000 100000\n");
  EXPECT_EQ(cgroup_quota("0::/slurm/job_7/step_0\n", root_), 3);
  EXPECT_EQ(cgroup_quota("0::/slurm\n", root_), 8);
  put("cpu.max", "50000 100000\n");  // of a container's root
  EXPECT_EQ(cgroup_quota("0::/\n", root_), 1);
}

TEST_F(Cores, VersionOneByItsControllers) {
  put("cpu,cpuacct/docker/1f/cpu.cfs_quota_us", "400000\n");
  put("cpu,cpuacct/docker/1f/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cgroup_quota("12:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n1:cpuset:/\n", root_), 4);
  EXPECT_EQ(cgroup_quota("4:cpuset:/docker/1f\n", root_), 0);
}

TEST_F(Cores, ARankHasItsShare) {
  EXPECT_EQ(cores_of_rank({8, 0, 0}, 4, 4), 2);  // one mask for all
  EXPECT_EQ(cores_of_rank({2, 0, 0}, 1, 4), 2);  // a mask each: divided already
  EXPECT_EQ(cores_of_rank({8, 4, 0}, 4, 4), 1);  // the quota is for all
  EXPECT_EQ(cores_of_rank({64, 10, 0}, 1, 1), 10);
  EXPECT_EQ(cores_of_rank({2, 0, 0}, 3, 3), 1);
}

TEST_F(Cores, ThisProcessHasSome) {
  const CoreLimits limits = core_limits();
  EXPECT_GE(limits.mask, 1);
  EXPECT_NE(limits.mask_hash, 0u);
  EXPECT_GE(available_cores(), 1);
  EXPECT_LE(available_cores(), limits.mask);
}

}  // namespace
}  // namespace weft
