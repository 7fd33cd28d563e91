// The checks of evenkeel doctor, on facts that are made up here: one sound launch of four ranks on two hosts, and what
// is done to it.
#include "launch/doctor/doctor.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "framework/json.h"
#include "tests/launch/command_line.h"
#include "tests/support/token_files.h"

namespace evenkeel::doctor {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

class DoctorTest : public ::testing::Test {
  protected:
    DoctorTest() {
        for (int r = 0; r < 4; ++r) {
            RankFacts rank;
            rank.launcher = "mpirun of Open MPI";
            rank.launched = rank.mpi_size = 4;
            rank.mpi_library = "Open MPI v4.1.4";
            rank.mca = {{"btl_tcp_if_include", "10.0.0.0/24"}};
            rank.environment = {{"OMP_NUM_THREADS", "4"}};
            rank.host = r < 2 ? "n0" : "n1";
            rank.host_key = rank.host + " boot";
            rank.ranks_on_node = 2;
            rank.interfaces = {{"eth0", r < 2 ? 0x0a000001u : 0x0a000002u, 24}};
            rank.used = {"eth0"};
            rank.cores_of_host = 8;
            for (int core = 0; core < 8; ++core) rank.cores.push_back(core);
            rank.threads = 4;
            rank.open_files = 65536;
            rank.stack = 8 << 20;
            rank.shm_free = rank.shm_total = 8 * kGiB;
            rank.memory_free = rank.memory_total = 64 * kGiB;
            survey_.ranks.push_back(rank);
        }
        survey_.config.emplace();
        survey_.config->data.path = "text.txt";
        survey_.config->trainer.micro_batch_size = 4;
        survey_.run_dir.emplace();
        survey_.run_dir->path = "runs/a";
        survey_.run_dir->free_bytes = 100 * kGiB;
        survey_.no_gpu = "none";
    }
    RankFacts& rank(int r) { return survey_.ranks[static_cast<std::size_t>(r)]; }
    void give_gpus() {
        for (int r = 0; r < 4; ++r) {
            RankOnGpu gpu;
            gpu.host = rank(r).host;
            gpu.uuid = concat("0", r);
            gpu.name = "NVIDIA H200";
            gpu.gpus_seen = 2;
            gpu.ranks_on_node = 2;
            gpu.nccl_version = 22809;
            survey_.gpus.push_back(gpu);
            survey_.drivers.push_back("580.1");
        }
        survey_.config->device = Device::kCuda;
        survey_.config->model.type = ComputeType::kBf16;
        survey_.config->model.attention.head_dim = 64;
    }
    Check check(const std::string& group, const std::string& name) const {
        for (const Check& check : all_checks(survey_)) {
            if (check.group == group && check.name == name) return check;
        }
        ADD_FAILURE() << "no check " << group << " / " << name;
        return {};
    }
    void expect(const std::string& group,
                const std::string& name,
                Verdict verdict,
                const std::string& fact,
                const std::string& remedy = "") const {
        const Check found = check(group, name);
        EXPECT_EQ(found.verdict, verdict) << found.fact;
        EXPECT_NE(found.fact.find(fact), std::string::npos) << found.fact;
        EXPECT_NE(found.remedy.find(remedy), std::string::npos) << found.remedy;
        EXPECT_EQ(found.verdict == Verdict::kOk, found.remedy.empty()) << found.remedy;
    }
    Survey survey_;
};

TEST_F(DoctorTest, NothingIsSaidOfASoundLaunch) {
    for (const Check& check : all_checks(survey_)) {
        EXPECT_EQ(check.verdict, Verdict::kOk)
            << check.group << " " << check.name << ": " << check.fact;
        EXPECT_EQ(check.remedy, "") << check.group << " " << check.name;
        EXPECT_NE(check.fact, "") << check.group << " " << check.name;
    }
    give_gpus();
    for (const Check& check : all_checks(survey_)) {
        EXPECT_EQ(check.verdict, Verdict::kOk)
            << check.group << " " << check.name << ": " << check.fact;
    }
}

TEST_F(DoctorTest, RanksThatBelieveToBeAloneAreWrong) {
    survey_.ranks.resize(1);
    rank(0).mpi_size = 1;
    expect("launch", "ranks", Verdict::kWrong,
           "mpirun of Open MPI started 4 processes, MPI sees 1 (Open MPI v4.1.4): each believes to "
           "be alone",
           "the mpirun of the MPI that it is built with, Open MPI v4.1.4");
    rank(0).launcher = "srun";
    expect("launch", "ranks", Verdict::kWrong, "srun started 4", "srun --mpi=pmix");
    rank(0).has_mpi = false;
    expect("launch", "ranks", Verdict::kWrong, "this build has no MPI", "-DEVENKEEL_MPI=ON");
    rank(0).launched = 0;
    expect("launch", "ranks", Verdict::kOk, "one process");
    rank(0).slurm_tasks = 16;
    expect("launch", "ranks", Verdict::kWarning, "Slurm has set aside 16 tasks", "srun");
}

TEST_F(DoctorTest, RanksThatDifferAreNamed) {
    rank(2).program = rank(3).program = 1;
    expect("launch", "program", Verdict::kWrong,
           "ranks 2-3 on n1 have a program other than rank 0 on n0", "the same build");
    rank(3).config = 1;
    expect("launch", "settings", Verdict::kWrong,
           "rank 3 on n1 has settings other than rank 0 on n0", "configuration file");
    rank(2).environment.clear();
    rank(3).environment["OMP_NUM_THREADS"] = "2";
    rank(3).environment["NCCL_DEBUG"] = "INFO";
    expect("launch", "environment", Verdict::kWarning, "so do OMP_NUM_THREADS", "-x NCCL_DEBUG");
    rank(3).environment.erase("NCCL_DEBUG");
    expect("launch", "environment", Verdict::kWarning,
           "OMP_NUM_THREADS differs: ranks 0-1: 4; rank 2: not set; rank 3: 2",
           "-x OMP_NUM_THREADS");
}

TEST_F(DoctorTest, AConfigurationForOtherNumbersOfRanksIsWrong) {
    survey_.config->parallel.tensor_parallel = 8;
    expect("launch", "configuration", Verdict::kWrong, "number of ranks: got 4", "change");
}

TEST_F(DoctorTest, CoresThatDoNotSufficeAreWarnedOf) {
    for (int r = 0; r < 4; ++r) rank(r).threads = 8;
    expect("processors", "threads", Verdict::kWarning, "16 on 8 cores of n0", "OMP_NUM_THREADS=4");
    for (int r = 0; r < 4; ++r) rank(r).threads = 4;
    for (int r = 0; r < 4; ++r) rank(r).core_quota = 4.0;
    expect("processors", "threads", Verdict::kWarning, "8 on 4 allowed of 8 cores",
           "OMP_NUM_THREADS=2");
    for (int r = 0; r < 4; ++r) rank(r).cores_of_host = 1;
    expect("processors", "slots", Verdict::kWarning, "2 ranks on 1 core of n0", "slots");
}

TEST_F(DoctorTest, BindingsThatHurtAreWarnedOf) {
    for (int r = 0; r < 4; ++r) {
        rank(r).threads = 1;
        rank(r).cores = {r % 2};
    }
    expect("processors", "binding", Verdict::kWarning,
           "rank 0 is bound to one of the 8 cores of n0, where 2 ranks run", "--bind-to none");
    for (int r = 0; r < 4; ++r) rank(r).cores = {0, 1};
    expect("processors", "binding", Verdict::kWarning, "rank 1 is bound to cores of another rank");
    for (int r = 0; r < 4; ++r) {
        rank(r).threads = 4;
        rank(r).cores = {2 * (r % 2), 2 * (r % 2) + 1};
    }
    expect("processors", "binding", Verdict::kWarning, "rank 0 has 4 threads on 2 cores");
    for (int r = 0; r < 4; ++r) rank(r).threads = 2;
    expect("processors", "binding", Verdict::kOk, "2 cores of 8 each");
}

TEST_F(DoctorTest, HostsThatAreTakenForOneAreWarnedOf) {
    rank(2).host = rank(3).host = "n0";
    expect("hosts", "ranks", Verdict::kWarning, "2 hosts are called n0", "hostname");
    rank(2).host_key = rank(3).host_key = rank(0).host_key;
    expect("hosts", "ranks", Verdict::kWarning, "MPI puts 2 ranks on one host");
}

TEST_F(DoctorTest, HostsWithOtherNumbersOfRanksAreWarnedOf) {
    rank(1) = rank(2);
    rank(0).ranks_on_node = 1;
    for (int r = 1; r < 4; ++r) rank(r).ranks_on_node = 3;
    expect("hosts", "ranks", Verdict::kWarning, "n0: rank 0; n1: ranks 1-3: not the same number");
}

TEST_F(DoctorTest, ClocksThatAreApartAreWarnedOf) {
    rank(1).clock_ahead = 0.25e-3;
    rank(2).round_trip = 80e-6;
    expect("hosts", "clocks", Verdict::kOk, "250 us apart at most");
    expect("hosts", "clocks", Verdict::kOk, "took 80 us");
    rank(2).clock_ahead = rank(3).clock_ahead = -90.5;
    expect("hosts", "clocks", Verdict::kWarning, "the clock of n1 is 90.5 s behind n0's", "chrony");
}

TEST_F(DoctorTest, NetworksThatAreNotSharedAreNoticed) {
    expect("network", "MPI traffic", Verdict::kOk, "over eth0 (btl_tcp_if_include=10.0.0.0/24)");
    rank(2).mca["btl_tcp_if_include"] = "10.1.0.0/16,eth1";
    expect("network", "MPI traffic", Verdict::kWrong,
           "btl_tcp_if_include=10.1.0.0/16,eth1 names no interface of n1",
           "name a network that all hosts have, 10.0.0.0/24: NETWORK=10.0.0.0/24 before "
           "launch/mpirun.sh, or mpirun --mca btl_tcp_if_include 10.0.0.0/24");
    for (int r = 2; r < 4; ++r) rank(r).interfaces = {{"ens3", 0xc0a80105u, 25}};
    expect("network", "MPI traffic", Verdict::kWrong, "names no interface of n1",
           "no network is on every host; n1 has 192.168.1.0/25 (ens3). Name one");
    for (int r = 2; r < 4; ++r) rank(r).interfaces = {};
    expect("network", "MPI traffic", Verdict::kWrong, "names no interface of n1",
           "n1 has none but lo.");
    for (int r = 2; r < 4; ++r) rank(r).interfaces = {{"eth0", 0x0a000002u, 24}};
    for (int r = 0; r < 4; ++r) rank(r).mca.erase("btl_tcp_if_include");
    rank(3).interfaces.push_back({"docker0", 0xac110001u, 16});
    expect("network", "MPI traffic", Verdict::kWarning, "docker0 on n1 could be taken instead",
           "--mca btl_tcp_if_include 10.0.0.0/24");
    rank(3).used = {"docker0"};
    expect("network", "MPI traffic", Verdict::kWarning,
           "ranks 0-2: over eth0; rank 3: over docker0; docker0 on n1 is made by");
}

TEST_F(DoctorTest, InterfacesForNcclFollowItsRules) {
    const auto set = [&](const char* value) {
        for (int r = 0; r < 4; ++r) rank(r).environment["NCCL_SOCKET_IFNAME"] = value;
    };
    for (const char* good : {"eth", "=eth0", "ib,eth", "^docker,lo", "=ib0,eth0"}) {
        set(good);
        expect("network", "NCCL traffic", Verdict::kOk, good);
    }
    for (const char* bad : {"ib", "=eth", "^eth", "eth1"}) {
        set(bad);
        expect("network", "NCCL traffic", Verdict::kWrong,
               concat(bad, " leaves no interface of n0, which has eth0"), "-x");
    }
}

TEST_F(DoctorTest, GpusThatRanksCannotHaveAreWrong) {
    give_gpus();
    survey_.gpus[1].uuid = survey_.gpus[0].uuid;
    survey_.gpus[0].gpus_seen = survey_.gpus[1].gpus_seen = 1;
    expect("gpus", "one a rank", Verdict::kWrong, "ranks 0 and 1 on n0 see the same GPU only",
           "nvidia-smi");
    survey_.config.reset();
    survey_.run_dir.reset();
    expect("gpus", "one a rank", Verdict::kWarning, "ranks 0 and 1 on n0 see the same GPU only");
}

TEST_F(DoctorTest, GpusThatAreHiddenFromNeighboursAreWarnedOf) {
    give_gpus();
    for (RankOnGpu& gpu : survey_.gpus) gpu.gpus_seen = 1;
    expect("gpus", "visible", Verdict::kWarning, "rank 0 on n0 sees only its own GPU",
           "--gpus-per-node");
}

TEST_F(DoctorTest, VersionsWithKnownFaultsAreWarnedOf) {
    give_gpus();
    const auto set = [&](int version) {
        for (RankOnGpu& gpu : survey_.gpus) gpu.nccl_version = version;
    };
    for (const int bad : {22803, 22808, 22900, 22907}) {
        set(bad);
        EXPECT_EQ(check("gpus", "versions").verdict, Verdict::kWarning) << bad;
    }
    for (const int good : {22703, 22802, 22809, 23007}) {
        set(good);
        EXPECT_EQ(check("gpus", "versions").verdict, Verdict::kOk) << good;
    }
    set(22703);
    rank(2).stack = -1;
    expect("gpus", "versions", Verdict::kWarning, "unlimited stack of rank 2", "ulimit -Ss 8192");
    survey_.drivers[3] = "570.2";
    expect("gpus", "versions", Verdict::kWarning, "driver 580.1 on n0, 570.2 on n1");
}

TEST_F(DoctorTest, LimitsThatAreTooLowAreNamedWithTheHost) {
    rank(2).shm_free = rank(3).shm_free = 8 << 20;
    expect("limits", "/dev/shm", Verdict::kWarning, "8.00 MiB free of 8.00 GiB on n1, for 2 ranks",
           "--shm-size");
    rank(3).open_files = 256;
    expect("limits", "open files", Verdict::kWarning, "up to 256 on n1, for 4 ranks", "ulimit -n");
    rank(1).memory_free = 1 << 20;
    expect("limits", "memory", Verdict::kWarning, "1.00 MiB free of 64.0 GiB on n0", "fit");
    rank(1).memory_total = 1 << 20;
    expect("limits", "memory", Verdict::kWrong, "training takes", "fit");
}

TEST_F(DoctorTest, ARunDirectoryThatIsNotSharedIsWrong) {
    survey_.run_dir->unseen = {2, 3};
    expect("run", "run_dir", Verdict::kWrong,
           "ranks 2-3 on n1 do not see in runs/a what rank 0 on n0 writes there", "NFS");
    survey_.run_dir->problem = "[file] runs/a: cannot create: Permission denied";
    expect("run", "run_dir", Verdict::kWrong, "Permission denied", "trainer.run_dir");
}

TEST_F(DoctorTest, DisksThatAreFullOrSlowAreNoticed) {
    survey_.run_dir->sync_seconds = 4.0;
    expect("run", "fsync", Verdict::kWarning, "4000.0 ms", "disk");
    const auto one = static_cast<std::uint64_t>(parameter_count(survey_.config->model)) * 12;
    survey_.run_dir->free_bytes = 2 * one;
    expect("run", "disk", Verdict::kWarning, "2 checkpoints and the one being written", "room");
    survey_.run_dir->free_bytes = one - 1;
    expect("run", "disk", Verdict::kWrong, "2 checkpoints", "checkpoint_keep");
}

TEST_F(DoctorTest, DataTimeOutsAndSignalsAreLookedAt) {
    rank(3).data_problem = "text.txt, which does not exist";
    expect("run", "data", Verdict::kWrong, "text.txt, which does not exist, rank 3 on n1",
           "the same path on every host");
    for (RankFacts& facts : survey_.ranks) facts.data_problem = "text.txt, which does not exist";
    expect("run", "data", Verdict::kWrong, "text.txt, which does not exist, all ranks",
           "or other data: --set data.path=PATH");
    survey_.config->parallel.timeout_seconds = 2.0;
    expect("run", "time-out", Verdict::kWarning, "2 s", "timeout_seconds");
    survey_.config->parallel.timeout_seconds = 7200.0;
    expect("run", "time-out", Verdict::kWarning, "7200 s", "timeout_seconds");
    rank(0).mca["odls_base_sigkill_timeout"] = "120";
    expect("run", "signals", Verdict::kWarning, "keeps the others for up to 240 seconds",
           "SIGUSR1");
}

// What training opens and refuses, the doctor does.
TEST_F(DoctorTest, DataAreOpenedAsTrainingOpensThem) {
    const testing::TemporaryDirectory directory;
    const std::vector<std::uint16_t> ids(1000, 7);
    const std::string prefix = testing::write_documents(directory, "corpus", {ids, ids});
    const std::string bare = directory.write("bare.bin", testing::bytes_of(ids));
    const std::string text = directory.write("text", std::string(2000, 'x'));
    RunConfig config;
    config.trainer.seq_len = 16;
    config.model.vocab_size = 256;
    EXPECT_EQ(problem_of_data(config), "") << "none is named";
    for (const std::string& path : {text, prefix, prefix + ".bin", bare + "," + prefix}) {
        config.data.path = path;
        EXPECT_EQ(problem_of_data(config), "");
    }
    const auto expect_problem = [&](const std::string& part) {
        const std::string problem = problem_of_data(config);
        EXPECT_NE(problem.find(part), std::string::npos) << problem;
    };
    config.data.validation_path = text;
    expect_problem("data.validation_path: got \"" + text + "\", which is no file of tokens");
    config.data.validation_path = directory.file("nothing.bin");
    expect_problem("nothing.bin: cannot open");
    config.data.validation_path = "";
    std::filesystem::resize_file(prefix + ".bin", 1998);
    config.data.path = bare + "," + prefix;
    expect_problem("of the .bin file, which has 1998");
    config.data.path = directory.file("nothing");
    expect_problem("which does not exist");
    config.data.path = bare + "," + text;
    expect_problem("data.path: got \"" + text + "\", which is no file of tokens");
    config.data.path = bare + ",";
    expect_problem("data.path: got \"\", which is no file of tokens");
}

TEST_F(DoctorTest, RanksAreListedInRuns) {
    EXPECT_EQ(rank_list({3}), "rank 3");
    EXPECT_EQ(rank_list({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7-8");
}

TEST_F(DoctorTest, TheTableKeepsToItsColumnsAndTheJsonHoldsTheSame) {
    rank(3).used = {"docker0"};
    survey_.run_dir->unseen = {2, 3};
    const std::vector<Check> checks = all_checks(survey_);
    for (const int columns : {60, 80, 120}) {
        std::istringstream lines(to_table(survey_, checks, columns, false));
        for (std::string line; std::getline(lines, line);) {
            EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << line;
            EXPECT_FALSE(line.ends_with(" ")) << "'" << line << "'";
        }
    }
    EXPECT_NE(to_table(survey_, checks, 100, true).find("\x1b[1;31mwrong"), std::string::npos);
    const auto json = nlohmann::json::parse(to_json(survey_, checks));
    EXPECT_EQ(json["ranks"], 4);
    EXPECT_EQ(json["hosts"][1]["name"], "n1");
    EXPECT_EQ(json["wrong"], 1);
    EXPECT_EQ(json["warnings"], 1);
    ASSERT_EQ(json["checks"].size(), checks.size());
    EXPECT_EQ(json["checks"][0]["verdict"], "ok");
}

}  // namespace
}  // namespace evenkeel::doctor

namespace evenkeel::testing {
namespace {

TEST(DoctorProgramTest, OneProcessIsWellAndSaysSo) {
    const TinyRun tiny;
    const Outcome outcome = run_evenkeel("doctor --json --config " + tiny.config);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    const auto json = nlohmann::json::parse(outcome.output);
    EXPECT_EQ(json["wrong"], 0) << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(tiny.run)) << "what was made to look is taken away";
}

TEST(DoctorProgramTest, ProcessesThatBelieveToBeAloneAreToldOnce) {
    const std::string fake = "SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=";
    // MPI comes up without a launcher, as it does under an srun that it does not know.
    const Outcome first = run_command(fake + "0 " EVENKEEL_PROGRAM " doctor");
    EXPECT_EQ(first.status, 1) << first.output;
    EXPECT_NE(first.output.find("srun started 3 processes, "), std::string::npos) << first.output;
    const Outcome second = run_command(fake + "1 " EVENKEEL_PROGRAM " doctor");
    EXPECT_EQ(second.status, 1) << second.output;
    EXPECT_EQ(second.output.find("started 3"), std::string::npos) << second.output;
}

TEST(DoctorProgramTest, ARunDirectoryThatCannotBeMadeIsWrong) {
    const TinyRun tiny;
    const Outcome outcome =
        run_evenkeel("doctor --config " + tiny.config + " --set trainer.run_dir=/proc/no/such");
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_NE(outcome.output.find("/proc/no"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace evenkeel::testing
