/* Stands in for libnvidia-ml.so.1 in tests. The file named by FAKE_NVML holds one fact a line: "driver 580.65.06",
   "count 8", "0.uuid GPU-…", "0.link.3 1 2 00000000:05:00.0". A value "!15" is NVML's error 15, "hang" never returns, "die"
   ends the process, a missing one is "not supported". -DOLD leaves out what drivers before 460 did not have, -DV2 what
   came after 460. Layouts as in NVIDIA's nvml.h; fake_size() tells them to the tests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *device;
typedef unsigned long long u64;
typedef unsigned int u32;

static char *facts;

static char *find(const char *key) {
    static char value[4][1024];
    static int turn;
    if (!facts) {
        FILE *file = fopen(getenv("FAKE_NVML") ? getenv("FAKE_NVML") : "", "r");
        facts = calloc(1, 1 << 20);
        if (file) { fread(facts, 1, (1 << 20) - 1, file); fclose(file); }
    }
    size_t size = strlen(key);
    for (char *line = facts; *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : "") {
        if (strncmp(line, key, size) || line[size] != ' ') continue;
        char *out = value[turn++ % 4];
        size_t length = strcspn(line + size + 1, "\n");
        memcpy(out, line + size + 1, length);
        out[length] = 0;
        return out;
    }
    return NULL;
}

/* A device is its number + 1; a MIG device has 1000 * (place + 1) on top. */
static const char *prefix(device d) {
    static char out[64];
    long number = (long)d;
    if (number >= 1000) sprintf(out, "%ld.mig.%ld.", number % 1000 - 1, number / 1000 - 1);
    else sprintf(out, "%ld.", number - 1);
    return out;
}

static int ask(device d, const char *name, char **value) {
    char key[128];
    sprintf(key, "%s%s", d ? prefix(d) : "", name);
    char *found = find(key);
    if (found && !strcmp(found, "hang")) for (;;) pause();
    if (found && !strcmp(found, "die")) abort();
    if (!found) return 3;
    if (found[0] == '!') return atoi(found + 1);
    *value = found;
    return 0;
}

static int text(device d, const char *name, char *out, u32 room) {
    char *value;
    int code = ask(d, name, &value);
    if (!code) snprintf(out, room, "%s", value);
    return code;
}

static int number(device d, const char *name, u32 *out) {
    char *value;
    int code = ask(d, name, &value);
    if (!code) *out = strtoul(value, NULL, 0);
    return code;
}

int nvmlInitWithFlags(u32 flags) { char *v; int code = ask(NULL, "init", &v); return code == 3 ? 0 : code; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
    static char out[32];
    if (code == 23) return "Insufficient Resources";
    sprintf(out, "fake error %d", code);
    return out;
}
int nvmlSystemGetDriverVersion(char *out, u32 room) { return text(NULL, "driver", out, room); }
int nvmlSystemGetCudaDriverVersion(int *out) { return number(NULL, "cuda", (u32 *)out); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return number(NULL, "cuda", (u32 *)out); }
int nvmlSystemGetProcessName(u32 pid, char *out, u32 room) {
    char key[32]; sprintf(key, "process.%u", pid); return text(NULL, key, out, room);
}
int nvmlDeviceGetCount_v2(u32 *out) { return number(NULL, "count", out); }
int nvmlDeviceGetHandleByIndex_v2(u32 index, device *out) {
    char *v;
    *out = (device)(long)(index + 1);
    int code = ask(*out, "handle", &v);
    return code == 3 ? 0 : code;
}
int nvmlDeviceGetUUID(device d, char *out, u32 room) { return text(d, "uuid", out, room); }
int nvmlDeviceGetName(device d, char *out, u32 room) { return text(d, "name", out, room); }

struct pci { char old[16]; u32 domain, bus, slot, ids, subsystem; char id[32]; };
static void place(struct pci *out, const char *bus) {
    memset(out, 0, sizeof *out);
    snprintf(out->id, sizeof out->id, "%s", bus);
    sscanf(bus, "%x:%x:%x", &out->domain, &out->bus, &out->slot);
}
int nvmlDeviceGetPciInfo_v3(device d, struct pci *out) {
    char *v; int code = ask(d, "bus", &v); if (!code) place(out, v); return code;
}
struct memory1 { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(device d, struct memory1 *out) {
    char *v; int code = ask(d, "memory", &v);
    if (!code) { u64 total, used; sscanf(v, "%llu %llu", &total, &used); out->total = total << 20; out->used = used << 20;
                 out->free = out->total - out->used; }
    return code;
}
int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
    char *v; int code = ask(d, "cc", &v); if (!code) sscanf(v, "%d.%d", major, minor); return code;
}
int nvmlDeviceGetPersistenceMode(device d, u32 *out) { return number(d, "persistence", out); }
int nvmlDeviceGetPowerUsage(device d, u32 *out) { return number(d, "power", out); }
int nvmlDeviceGetPowerManagementLimit(device d, u32 *out) { return number(d, "power_limit", out); }
int nvmlDeviceGetTemperature(device d, u32 sensor, u32 *out) { return number(d, "temperature", out); }
struct utilization { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(device d, struct utilization *out) {
    out->memory = 0; return number(d, "utilisation", &out->gpu);
}
int nvmlDeviceGetTotalEccErrors(device d, u32 type, u32 counter, u64 *out) {
    char *v; int code = ask(d, counter ? "ecc_aggregate" : "ecc_volatile", &v); if (!code) *out = strtoull(v, 0, 0); return code;
}
/* "retired.double 16", and "retired.times 1790000000 …" when each of the last of them was. */
static int retired(device d, u32 cause, u32 *count, u64 *out, u64 *times) {
    u32 have; int code = number(d, cause ? "retired.double" : "retired.single", &have);
    if (code) return code;
    int room = out && *count >= have;
    *count = have;
    if (!room) return have || out ? 7 : 0;
    char *list = NULL; ask(d, "retired.times", &list);
    for (u32 i = 0; i < have; i++) {
        out[i] = i;
        if (times) times[i] = list ? strtoull(list, &list, 10) : 0;
    }
    return 0;
}
int nvmlDeviceGetRetiredPages(device d, u32 cause, u32 *n, u64 *out) { return retired(d, cause, n, out, NULL); }
int nvmlDeviceGetRetiredPagesPendingStatus(device d, u32 *out) { return number(d, "retired.pending", out); }
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, u64 *out) {
    u32 v; int code = number(d, "throttle", &v); if (!code) *out = v; return code;
}
int nvmlDeviceGetNvLinkState(device d, u32 link, u32 *out) {
    char key[32], *v; sprintf(key, "link.%u", link);
    int code = ask(d, key, &v);
    if (!code) *out = atoi(v);
    return code == 3 && link && ask(d, "link.0", &v) != 3 ? 2 : code; /* past the last one: "invalid argument" */
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device d, u32 link, struct pci *out) {
    char key[32], *v, bus[32] = ""; u32 up, type; sprintf(key, "link.%u", link);
    int code = ask(d, key, &v);
    if (!code && sscanf(v, "%u %u %31s", &up, &type, bus) == 3) place(out, bus); else if (!code) code = 3;
    return code;
}

struct process1 { u32 pid; u64 memory; };
struct process2 { u32 pid; u64 memory; u32 gi, ci; };
/* "C 4242 1005 7 0": kind, pid, MiB, and the MIG instance if it has one; "-" as size is NVML's "not available". */
static int listed(device d, char kind, u32 *count, void *out, int wide) {
    u32 have = 0; char *v;
    if (ask(d, "processes", &v) != 3) { int code = ask(d, "processes", &v); if (code) return code; }
    for (int i = 0; i < 32; i++) {
        char key[32], k, size[32]; u32 pid, gi = ~0U, ci = ~0U; sprintf(key, "proc.%d", i);
        if (ask(d, key, &v) || sscanf(v, "%c %u %31s %u %u", &k, &pid, size, &gi, &ci) < 3 || k != kind) continue;
        u64 bytes = size[0] == '-' ? ~0ULL : strtoull(size, 0, 0) << 20;
        if (out && wide) ((struct process2 *)out)[have] = (struct process2){pid, bytes, gi, ci};
        else if (out) ((struct process1 *)out)[have] = (struct process1){pid, bytes};
        have++;
    }
    int enough = out || !have;
    *count = have;
    return enough ? 0 : 7;
}
#if defined OLD || defined V2
int nvmlDeviceGetComputeRunningProcesses(device d, u32 *n, void *out) { return listed(d, 'C', n, out, 0); }
int nvmlDeviceGetGraphicsRunningProcesses(device d, u32 *n, void *out) { return listed(d, 'G', n, out, 0); }
#endif
struct memory2 { u32 version; u64 total, reserved, free, used; };
struct field { u32 id, scope; long long stamp, latency; u32 type; int code; union { double d; u32 u; u64 l; } value; };
struct attributes { u32 sms, copy, decoder, encoder, jpeg, ofa, slices, compute_slices; u64 memory; };
struct fabric1 { unsigned char uuid[16]; int status; u32 clique; unsigned char state; };
struct fabric2 { u32 version; unsigned char uuid[16]; int status; u32 clique; unsigned char state; u32 mask; };
struct fabric3 { u32 version; unsigned char uuid[16]; int status; u32 clique; unsigned char state; u32 mask; unsigned char summary; };
#ifndef OLD
int nvmlDeviceGetRetiredPages_v2(device d, u32 cause, u32 *n, u64 *out, u64 *times) { return retired(d, cause, n, out, times); }
int nvmlDeviceGetRemappedRows(device d, u32 *a, u32 *b, u32 *c, u32 *e) {
    char *v; int code = ask(d, "rows", &v); if (!code) sscanf(v, "%u %u %u %u", a, b, c, e); return code;
}
int nvmlDeviceGetFieldValues(device d, int count, struct field *out) {
    for (int i = 0; i < count; i++) {
        char key[32]; u32 v = 0; sprintf(key, "field.%u", out[i].id);
        out[i].code = number(d, key, &v); out[i].type = 1; out[i].value.u = v;
    }
    return 0;
}
int nvmlDeviceGetMigMode(device d, u32 *now, u32 *then) {
    char *v; int code = ask(d, "mig_mode", &v); if (!code) sscanf(v, "%u %u", now, then); return code;
}
int nvmlDeviceGetMaxMigDeviceCount(device d, u32 *out) { *out = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(device d, u32 index, device *out) {
    char *v; device mig = (device)((long)d + 1000 * (index + 1));
    *out = mig;
    return ask(mig, "gi", &v) ? 6 : 0;
}
int nvmlDeviceGetGpuInstanceId(device d, u32 *out) { return number(d, "gi", out); }
int nvmlDeviceGetComputeInstanceId(device d, u32 *out) { return number(d, "ci", out); }
int nvmlDeviceGetAttributes_v2(device d, struct attributes *out) {
    memset(out, 0, sizeof *out); return number(d, "sms", &out->sms);
}
#endif
#ifdef V2
int nvmlDeviceGetComputeRunningProcesses_v2(device d, u32 *n, void *out) { return listed(d, 'C', n, out, 1); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(device d, u32 *n, void *out) { return listed(d, 'G', n, out, 1); }
#elif !defined OLD
int nvmlDeviceGetComputeRunningProcesses_v3(device d, u32 *n, void *out) { return listed(d, 'C', n, out, 1); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device d, u32 *n, void *out) { return listed(d, 'G', n, out, 1); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device d, u32 *n, void *out) { return listed(d, 'M', n, out, 1); }
int nvmlDeviceGetMemoryInfo_v2(device d, struct memory2 *out) {
    char *v; int code = ask(d, "memory", &v);
    if (!code) { u64 total = 0, used = 0, kept = 0; sscanf(v, "%llu %llu %llu", &total, &used, &kept);
                 out->total = total << 20; out->used = used << 20; out->reserved = kept << 20; }
    return code;
}
int nvmlDeviceGetCurrentClocksEventReasons(device d, u64 *out) { return nvmlDeviceGetCurrentClocksThrottleReasons(d, out); }
int nvmlDeviceGetNvLinkRemoteDeviceType(device d, u32 link, u32 *out) {
    char key[32], *v; u32 up; sprintf(key, "link.%u", link);
    int code = ask(d, key, &v);
    if (!code && sscanf(v, "%u %u", &up, out) != 2) code = 3;
    return code;
}
/* "fabric STATE STATUS CLUSTERHEX CLIQUE MASK SUMMARY": what this driver knows of it is told by "fabric_version". */
static int fabric(device d, struct fabric3 *out) {
    char *v, hex[33] = ""; u32 state = 0, mask = 0, summary = 0, byte;
    int code = ask(d, "fabric", &v);
    if (code) return code;
    memset(out, 0xA5, sizeof *out); /* as from a driver's stack: what lies between the members means nothing */
    sscanf(v, "%u %d %32s %u %u %u", &state, &out->status, hex, &out->clique, &mask, &summary);
    for (int i = 0; i < 16 && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++) out->uuid[i] = byte;
    out->state = state; out->mask = mask; out->summary = summary;
    return 0;
}
int nvmlDeviceGetGpuFabricInfo(device d, struct fabric1 *out) {
    struct fabric3 all; int code = fabric(d, &all);
    if (!code) memcpy(out, all.uuid, sizeof *out);
    return code;
}
int nvmlDeviceGetGpuFabricInfoV(device d, struct fabric3 *out) {
    struct fabric3 all; u32 most = 3, version = out->version; number(NULL, "fabric_version", &most);
    if (version >> 24 > most) return 25;
    int code = fabric(d, &all);
    if (code) return code;
    all.version = version;
    memcpy(out, &all, version >> 24 == 2 ? sizeof(struct fabric2) : sizeof all);
    return 0;
}
#endif

/* What pynvml calls each of the layouts above. */
int fake_size(const char *name) {
    struct { const char *name; int size; } sizes[] = {
        {"nvmlPciInfo_t", sizeof(struct pci)}, {"c_nvmlMemory_t", sizeof(struct memory1)},
        {"c_nvmlMemory_v2_t", sizeof(struct memory2)}, {"c_nvmlUtilization_t", sizeof(struct utilization)},
        {"c_nvmlProcessInfo_v2_t", sizeof(struct process2)}, {"c_nvmlProcessInfo_v3_t", sizeof(struct process2)},
        {"c_nvmlFieldValue_t", sizeof(struct field)}, {"c_nvmlDeviceAttributes", sizeof(struct attributes)},
        {"c_nvmlGpuFabricInfo_t", sizeof(struct fabric1)}, {"c_nvmlGpuFabricInfo_v2_t", sizeof(struct fabric2)},
        {"c_nvmlGpuFabricInfo_v3_t", sizeof(struct fabric3)}, {"OldProcess", sizeof(struct process1)},
    };
    for (int i = 0; i < sizeof sizes / sizeof *sizes; i++) if (!strcmp(sizes[i].name, name)) return sizes[i].size;
    return 0;
}
