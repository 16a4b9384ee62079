// netpol enforces NetworkPolicies on a node of the test cluster, without a moment in which a new pod is free.
//
// What a policy means is decided by sigs.k8s.io/kube-network-policies. This program asks it about every first packet of
// a connection from, to or between pods: a rule of the node (harness/node.py) queues them, and without an answer they are
// dropped. Which pod has an address is known from the container runtime before the pod's first process starts.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/kube-network-policies/pkg/api"
	"sigs.k8s.io/kube-network-policies/pkg/network"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
	"sigs.k8s.io/kube-network-policies/pkg/podinfo"
)

const (
	headerBytes  = 128  // of a packet: all that a policy looks at
	queuePackets = 4096 // waiting for a verdict; more are dropped
)

func main() {
	node := flag.String("node", "", "name of this node")
	pods := flag.String("pods", "", "addresses of this node's pods, as a prefix")
	kubeconfig := flag.String("kubeconfig", "", "may list and watch pods, namespaces and network policies")
	queue := flag.Uint("queue", 100, "number of the netfilter queue")
	flag.Parse()
	local, err := netip.ParsePrefix(*pods)
	if err != nil {
		log.Fatal("-pods: ", err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if err := run(ctx, *node, *kubeconfig, uint16(*queue), local); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, node, kubeconfig string, queue uint16, local netip.Prefix) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, namespaces := factory.Core().V1().Pods(), factory.Core().V1().Namespaces()
	addresses, err := newAddresses(local, pods.Informer())
	if err != nil {
		return err
	}
	provider := podinfo.NewInformerProvider(pods, namespaces, nil, []podinfo.IPResolver{addresses})
	policies := networkpolicy.NewStandardNetworkPolicy(node, namespaces, pods, factory.Networking().V1().NetworkPolicies())
	engine := networkpolicy.NewPolicyEngine(provider, []api.PolicyEvaluator{policies})
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	go addresses.follow(ctx)
	guard := &guard{local: local, provider: provider, engine: engine}
	log.Printf("policies of node %s are enforced for pods in %s", node, local)
	return guard.serve(ctx, queue)
}

type guard struct {
	local    netip.Prefix
	provider api.PodInfoProvider
	engine   *networkpolicy.PolicyEngine
	queue    *nfqueue.Nfqueue
}

func (g *guard) serve(ctx context.Context, number uint16) error {
	queue, err := nfqueue.Open(&nfqueue.Config{
		NfQueue:      number,
		Flags:        nfqueue.NfQaCfgFlagGSO,
		MaxPacketLen: headerBytes,
		MaxQueueLen:  queuePackets,
		Copymode:     nfqueue.NfQnlCopyPacket,
		WriteTimeout: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	defer queue.Close()
	g.queue = queue
	judge := func(packet nfqueue.Attribute) int {
		verdict := nfqueue.NfDrop
		if g.allowed(ctx, *packet.Payload) {
			verdict = nfqueue.NfAccept
		}
		if err := queue.SetVerdict(*packet.PacketID, verdict); err != nil {
			log.Print("verdict: ", err)
		}
		return 0
	}
	lost := func(err error) int {
		var broken *netlink.OpError
		if !errors.As(err, &broken) || !(broken.Timeout() || broken.Temporary()) {
			log.Print("queue: ", err)
		}
		return 0
	}
	if err := queue.RegisterWithErrorFunc(ctx, judge, lost); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (g *guard) allowed(ctx context.Context, payload []byte) bool {
	packet, err := network.ParsePacket(payload)
	if err != nil {
		return false
	}
	// An address of ours that nobody is known to have: policies cannot be asked, and the engine would call it a stranger.
	for _, ip := range []string{packet.SrcIP.String(), packet.DstIP.String()} {
		address, err := netip.ParseAddr(ip)
		if err != nil {
			return false
		}
		if g.local.Contains(address) {
			if _, known := g.provider.GetPodInfoByIP(ip); !known {
				return false
			}
		}
	}
	allowed, err := g.engine.EvaluatePacket(ctx, &packet)
	return err == nil && allowed
}
