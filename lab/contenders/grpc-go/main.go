// The rival google.golang.org/grpc, as its documentation shows it: its own server. The service is
// that of its own example, helloworld.Greeter, registered as generated code does it. Both messages of
// the example have a text as their only field, with the number 1, and so are StringValue on the wire,
// which the module of protocol buffers brings along: no compiler of protocols is needed.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Greeter is what generated code asks of a service.
type Greeter interface {
	SayHello(context.Context, *wrapperspb.StringValue) (*wrapperspb.StringValue, error)
}

type greeter struct{}

func (greeter) SayHello(_ context.Context, name *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	return &wrapperspb.StringValue{Value: "Hello " + name.GetValue() + "!"}, nil
}

func sayHello(service any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
	name := new(wrapperspb.StringValue)
	if err := decode(name); err != nil {
		return nil, err
	}
	if interceptor == nil {
		return service.(Greeter).SayHello(ctx, name)
	}
	info := &grpc.UnaryServerInfo{Server: service, FullMethod: "/helloworld.Greeter/SayHello"}
	return interceptor(ctx, name, info, func(ctx context.Context, name any) (any, error) {
		return service.(Greeter).SayHello(ctx, name.(*wrapperspb.StringValue))
	})
}

var description = grpc.ServiceDesc{
	ServiceName: "helloworld.Greeter",
	HandlerType: (*Greeter)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "SayHello", Handler: sayHello}},
	Metadata:    "helloworld.proto",
}

func main() {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	server.RegisterService(&description, greeter{})
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	go func() {
		<-ended.Done()
		server.GracefulStop()
	}()
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
